"""Continuation: how likely the right answer is, and whether the model would say it."""

from __future__ import annotations

from collections.abc import Sequence

from forge.tasks.item import Answer, Item, Judged, Pair, scores_of
from forge.tasks.task import Task, bits_per_byte


class Continuation(Task):
    """Base of tasks with one right continuation: each item asks for one pair.

    accuracy: the likeliest tokens are the continuation. bits_per_byte: of the continuation. loss:
    mean nats of its tokens.
    """

    main = "bits_per_byte"

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        (score,) = scores_of(answers)
        (pair,) = item.asks
        assert isinstance(pair, Pair)
        metrics = {
            "accuracy": float(score.greedy),
            "bits_per_byte": bits_per_byte(score.logprob, pair.continuation),
            "loss": -score.logprob / score.tokens,
        }
        return Judged(metrics)
