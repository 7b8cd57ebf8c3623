"""A text that shares its steps with others, and the tokens that a step draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from forge.models.token_distribution import NONE, NOT_FINITE, Sampling

Prompt = tuple[int, ...]


class Guide(Protocol):
    """Says at each place of a text which tokens may be drawn."""

    def allowed(self) -> Tensor:
        """Whether each token may be next: bool [vocab], one true at least."""
        ...

    def take(self, token: int) -> None:
        """Continue to the place after a token."""
        ...


@dataclass(kw_only=True, eq=False)
class Row:
    """A text that is written: its prompt, and the tokens drawn, the ending token too.

    number: of its random stream, with the seed of `sampling`. most: tokens to draw at most. ends:
    ids that end it. ended: whether it ends with the tokens drawn. top: candidates to record at each
    token, as (id, log-probability), the likeliest first. support: ids that a cut left to draw
    from, at each token. over: whether it has ended. guide: of the tokens that may be drawn.
    """

    prompt: Prompt
    number: object
    most: int
    sampling: Sampling
    ends: frozenset[int] = frozenset()
    ended: Callable[[list[int]], bool] | None = None
    top: int = 0
    guide: Guide | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    candidates: list[list[tuple[int, float]]] = field(default_factory=list)
    support: list[list[int]] = field(default_factory=list)
    over: bool = False

    def take(self, token: int, logprob: float, candidates: list[tuple[int, float]]) -> None:
        """Add a token. Raises FloatingPointError where the logits were not finite."""
        if token == NONE:
            raise FloatingPointError(NOT_FINITE)
        self.tokens.append(token)
        if self.guide is not None:
            self.guide.take(token)
        self.logprobs.append(logprob)
        if self.top:
            self.candidates.append(candidates[: self.top])
        full = len(self.tokens) == self.most
        self.over = full or token in self.ends or bool(self.ended and self.ended(self.tokens))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A token of each row, [rows, 1], its log-probability, and on request the likeliest candidates,
    as of Tensor.topk, and the ids that a cut left to draw from, as in `Sampling.support`.
    """

    tokens: Tensor
    logprobs: Tensor
    candidates: Any
    support: Tensor | None
