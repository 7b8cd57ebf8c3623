"""In-context tasks as CORE asks them (DCLM, arXiv:2406.11794; nanochat): shots, spans, centring."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.statistics.interval import Interval
from forge.tasks.item import Aligned, Answer, Item, Judged, scores_of
from forge.tasks.task import Task

CHOICE, SCHEMA, LANGUAGE = "multiple_choice", "schema", "language_modeling"
FIELDS = {
    CHOICE: ("query", "choices", "gold"),
    SCHEMA: ("context_options", "continuation", "gold"),
    LANGUAGE: ("context", "continuation"),
}
"""What an item of each type has."""
ORDER_SEED, SHOT_SEED = 1337, 1234
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class InContext:
    """One task. kind: a key of `FIELDS`. delimiter: before the answer. baseline: the accuracy of
    guessing, in percent.
    """

    label: str
    kind: str
    shots: int
    baseline: float
    delimiter: str = " "

    def items(self, rows: Sequence[Row], most: int = 0) -> Iterator[Item]:
        """The items of rows, shuffled, and of these the first `most`; 0 = all. The shots of an item
        are drawn from the others among them.
        """
        chosen = list(rows)
        random.Random(ORDER_SEED).shuffle(chosen)
        chosen = chosen[:most] if most else chosen
        for number, row in enumerate(chosen):
            others = [index for index in range(len(chosen)) if index != number]
            drawn = random.Random(SHOT_SEED + number).sample(others, self.shots)
            head = "".join(f"{self._shown(chosen[index])}\n\n" for index in drawn)
            texts = self._texts(head, row)
            yield Item(
                id=f"{self.label}/{number}",
                asks=self._asks(texts),
                data={"task": self.label, "gold": row.get("gold"), "of": len(chosen)},
            )

    def _shown(self, row: Row) -> str:
        """A row with its answer, as a shot."""
        if self.kind == CHOICE:
            return f"{row['query']}{self.delimiter}{row['choices'][row['gold']]}"
        if self.kind == SCHEMA:
            context = row["context_options"][row["gold"]]
            return f"{context}{self.delimiter}{row['continuation']}"
        return f"{row['context'].strip()}{self.delimiter}{row['continuation']}"

    def _texts(self, head: str, row: Row) -> tuple[str, ...]:
        """The texts whose tokens are compared: one for each choice or context, or the one without
        and the one with the answer.
        """
        if self.kind == CHOICE:
            question = f"{head}{row['query']}{self.delimiter}"
            return tuple(question + choice for choice in row["choices"])
        if self.kind == SCHEMA:
            end = f"{self.delimiter}{row['continuation']}"
            return tuple(head + context + end for context in row["context_options"])
        question = f"{head}{row['context'].strip()}{self.delimiter}"
        # The delimiter's space goes to the answer: it is the first part of that token.
        return question.rstrip(), question + row["continuation"]

    def _asks(self, texts: tuple[str, ...]) -> tuple[Aligned, ...]:
        if self.kind == LANGUAGE:
            return (Aligned(texts, 1, "first"),)
        by = "start" if self.kind == CHOICE else "end"
        return tuple(Aligned(texts, index, by) for index in range(len(texts)))

    def centred(self, accuracy: float) -> float:
        """0 for guessing, 1 for all right."""
        guessed = 0.01 * self.baseline
        return (accuracy - guessed) / (1 - guessed)


class InContextTasks(Task):
    """Base of several in-context tasks, of which each counts alike in the metric `name`.

    name: mean over tasks of the accuracy, centred at guessing. accuracy_TASK and centred_TASK: of
    each. The answer of several is the text with the lowest mean loss of its span; a text to
    continue is right if each of its likeliest tokens is.
    """

    name = "core"

    def __init__(self, max_per_task: int = 0) -> None:
        self.max_per_task = max_per_task
        self.main = self.name
        self._by_label: dict[str, InContext] = {}

    def tasks(self) -> Iterator[tuple[InContext, Sequence[Row]]]:
        """Yield each task with its rows. Raises ValueError."""
        raise NotImplementedError

    def items(self) -> Sequence[Item]:
        items: list[Item] = []
        for task, rows in self.tasks():
            self._by_label[task.label] = task
            items += task.items(rows, self.max_per_task)
        return items

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        scores, label = scores_of(answers), item.data["task"]
        task, detail = self._by_label[label], {"task": label}
        if task.kind == LANGUAGE:
            right = scores[0].greedy
        else:
            losses = [
                -score.logprob / score.tokens if score.tokens else math.nan for score in scores
            ]
            chosen = min(range(len(losses)), key=losses.__getitem__)
            right = chosen == item.data["gold"]
            detail |= {"gold": item.data["gold"], "chosen": chosen}
        centred = task.centred(float(right))
        metrics = {self.name: centred, f"accuracy_{label}": float(right)}
        metrics[f"centred_{label}"] = centred
        return Judged(metrics, {self.name: 1 / item.data["of"]}, detail)

    def whole(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
        """The mean over tasks. Its error is that of items drawn again within the same tasks."""
        from forge.statistics.items import mean  # numpy, which checking a config does without

        by_task: dict[str, list[float]] = {}
        for row in rows:
            by_task.setdefault(row["task"], []).append(row["metrics"][self.name])
        estimates = [mean(values) for values in by_task.values()]
        if not estimates:
            return {}
        count = len(estimates)
        value = sum(each.value for each in estimates) / count
        errors = [each.stderr for each in estimates if each.stderr is not None]
        known = len(errors) == count  # a task of one item has no error
        stderr = math.sqrt(sum(error**2 for error in errors)) / count if known else None
        return {self.name: Interval(value=value, n=len(rows), stderr=stderr)}


def in_context_fault(row: Any, kind: str) -> str:
    """The fault of a row for a type of task; '' = none."""
    if not isinstance(row, dict):
        return "it is no object"
    missing = [name for name in FIELDS[kind] if name not in row]
    if missing:
        return f"it has no {' and no '.join(missing)}"
    if kind == LANGUAGE:
        return ""
    several = row[FIELDS[kind][0 if kind == SCHEMA else 1]]
    if not isinstance(several, list) or len(several) < 2:
        return "it has no two texts to choose from"
    gold = row["gold"]
    fits = isinstance(gold, int) and 0 <= gold < len(several)
    return "" if fits else f"gold is {gold!r}, no number of a choice"
