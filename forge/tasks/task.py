"""Base of every task, forge's own or a user's: items, and how answers are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forge.statistics.interval import Interval
from forge.tasks.item import Answer, Item, Judged

LN2 = math.log(2)


class Task:
    """A task: questions to a model, and metrics of its answers.

    Built from an entry of `eval.tasks` with the entry's other keys as keywords. A metric of the
    task is the weighted mean over items of the item's metric. Two calls of `items` give equal
    items, in every process. main: the metric that stands for the task.
    """

    main: str = "accuracy"

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield (what is wrong, what to do) of a task that cannot run, without a model."""
        yield from ()

    def items(self) -> Sequence[Item]:
        """The items. Raises ValueError for unreadable files."""
        raise NotImplementedError

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        """The metrics of an item, from the answers to its asks, in their order."""
        raise NotImplementedError

    def whole(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
        """Metrics of all items that are no weighted means over items, from the items' rows."""
        return {}

    def about(self) -> dict[str, Any]:
        """Facts on the data of the task for the summary, such as a version or a hash."""
        return {}


def text_of(continuation: str) -> str:
    """A continuation without the space that parts it from its context: what norms divide by."""
    return continuation[1:] if continuation[:1] == " " and len(continuation) > 1 else continuation


def n_bytes(continuation: str) -> int:
    """UTF-8 bytes of a continuation, without the space before it."""
    return max(len(text_of(continuation).encode()), 1)


def bits_per_byte(logprob: float, continuation: str) -> float:
    """-log2 of a continuation's probability, for each of its bytes."""
    return -logprob / (LN2 * n_bytes(continuation))
