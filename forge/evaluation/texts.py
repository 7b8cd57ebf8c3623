"""Texts as tasks: loss, perplexity and bits per byte of every document, read alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from forge.build import build
from forge.config.data.reading import held_out_section
from forge.config.data.text import Data
from forge.data.preparing.cached import prepare_tokens
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore, ends_of
from forge.tasks.item import Answer, Document, Item, Judged, scores_of
from forge.tasks.task import LN2, Task

TOKENS, DOCUMENTS = "tokens", "documents"


class Texts(Task):
    """The documents of a text, scored from their first token on, in windows as long as the model.

    data: the run's section, whose options hold where the entry has none. weigh_by: each token
    counts alike in loss and token_accuracy, and each byte in bits_per_byte, or each document does.
    loss: mean nats of a token; perplexity follows from it. Tokens that begin or end documents are
    not scored, so bits_per_byte is that of the text alone.
    """

    main = "bits_per_byte"

    def __init__(
        self, entry: Mapping[str, Any], *, name: str, data: Data, tokenizer: Tokenizer, trust: Any
    ) -> None:
        options = {key: value for key, value in entry.items() if key not in ("_target_", "kind")}
        self.weigh_by = options.pop("weigh_by", TOKENS)
        if self.weigh_by not in (TOKENS, DOCUMENTS):
            raise ValueError(f"eval.tasks.{name}.weigh_by={self.weigh_by}: tokens or documents")
        self.section = held_out_section(data, options, f"eval.tasks.{name}")
        self.name, self.tokenizer, self.trust = name, tokenizer, trust

    def items(self) -> Sequence[Item]:
        store = prepare_tokens(
            self.section, self.tokenizer, build=partial(build, trust=self.trust)
        ).val
        sizes = self.tokenizer.token_bytes()
        items = []
        for number, ids in enumerate(documents(store, self.tokenizer)):
            size = int(sizes[list(ids)].sum())
            items.append(Item(id=str(number), asks=(Document(ids),), data={"bytes": size}))
        if not items:
            raise ValueError(f"eval.tasks.{self.name}: there is no text in it")
        return items

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        (score,) = scores_of(answers)
        size = max(item.data["bytes"], 1)
        metrics = {
            "loss": -score.logprob / score.tokens,
            "bits_per_byte": -score.logprob / (LN2 * size),
            "token_accuracy": score.matches / score.tokens,
        }
        if self.weigh_by == DOCUMENTS:
            return Judged(metrics)
        count = float(score.tokens)
        weights = {"loss": count, "bits_per_byte": float(size), "token_accuracy": count}
        return Judged(metrics, weights)


def documents(store: TokenStore, tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    """The tokens of each document of a store that is not empty, without its begin and end."""
    if not len(store):
        return
    tokens = np.asarray(store.read(0, len(store)))
    marks = store.counted.read(0, len(store)) if store.counted is not None else None
    ends = np.flatnonzero(ends_of(tokens, marks, tokenizer.end_id))
    borders = np.array(sorted(tokenizer.borders))
    for part in np.split(tokens, ends + 1):
        inside = part[~np.isin(part, borders)]
        if len(inside):
            yield tuple(inside.tolist())


def perplexity(loss: float) -> float:
    """exp(loss), with infinity for what a float cannot hold."""
    return math.exp(loss) if loss < 700 else math.inf
