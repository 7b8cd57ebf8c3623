"""Items of a task: questions to a model, and the model's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A continuation to score after a context."""

    context: str
    continuation: str


class Document(NamedTuple):
    """A document to score from its first token on, in windows where it is longer than the model.

    ids: tokens without those that begin and end documents.
    """

    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text to continue. stop: strings that end it. temperature: 0 = the likeliest tokens.

    samples: number of texts, each with its own random numbers by seed, prompt and sample.
    """

    text: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0


class Aligned(NamedTuple):
    """The text `texts[index]`, scored where its tokens part from those of the others.

    by: start = from the first token that not all have, end = only the last tokens that all have,
    first = after the tokens of the first text. A text longer than the model loses its beginning.
    """

    texts: tuple[str, ...]
    index: int
    by: str


Ask = Pair | Document | Prompt | Aligned


class Score(NamedTuple):
    """The log-probability of a continuation: the sum over its tokens, in nats.

    matches: number of tokens equal to the model's likeliest token.
    """

    logprob: float
    tokens: int
    matches: int

    @property
    def greedy(self) -> bool:
        """Whether the likeliest tokens are this continuation."""
        return self.matches == self.tokens


class Generated(NamedTuple):
    """Continuations of a prompt, one a sample, each cut at its stop string."""

    texts: tuple[str, ...]


Answer = Score | Generated


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of a task.

    data: what the task judges by. cluster: items of one cluster, such as a subject or a passage,
    are not independent.
    """

    id: str
    asks: tuple[Ask, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None


class Judged(NamedTuple):
    """The metrics of an item. weights: of the item in a metric's mean; absent = 1. detail: further
    columns of the item's row.
    """

    metrics: dict[str, float]
    weights: Mapping[str, float] = {}
    detail: Mapping[str, Any] = {}


def scores_of(answers: Sequence[Answer]) -> list[Score]:
    """The answers to pairs and documents."""
    scores = [answer for answer in answers if isinstance(answer, Score)]
    assert len(scores) == len(answers), "a prompt among pairs"
    return scores


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """At most this many items, evenly spread, the same every time; 0 = all."""
    if not most or most >= len(items):
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]
