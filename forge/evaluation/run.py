"""Run tasks: their requests through the engine, answers judged, metrics with standard errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation.cache import Cache
from forge.evaluation.engine import Done, Engine
from forge.evaluation.generation import ROWS, Asked, asked, generated
from forge.evaluation.prepared import PreparedTask
from forge.evaluation.requests import Request
from forge.evaluation.texts import perplexity
from forge.statistics.interval import Interval
from forge.statistics.items import mean, wilson
from forge.tasks.item import Answer, Generated, Prompt, Score

AT_ONCE = 4096
"""Requests between two looks at the clock and two writes of answers."""
ITEMS_A_LOOK = 64
"""Items between two looks at the clock of an evaluation with a budget in seconds."""


@dataclass(kw_only=True)
class TaskResult:
    """A task's evaluation. rows: a dict an item. of: items before the budget. main: the metric that
    stands for the task. seconds: of this process, less where answers were known.
    """

    name: str
    rows: list[dict[str, Any]]
    metrics: dict[str, Interval]
    of: int
    main: str = ""
    seconds: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Runner:
    """Runs prepared tasks with a model, on all ranks alike.

    cache: answers known before; the main rank's file is written. seconds: budget of all tasks
    together, measured by the main rank; 0 = none. watch: called between rounds on all ranks, and
    free to raise.
    """

    engine: Engine
    tokenizer: Tokenizer
    cache: Cache
    seconds: float = 0.0
    watch: Callable[[], None] = lambda: None

    def run(self, tasks: Iterable[PreparedTask]) -> list[TaskResult]:
        """The result of each task; with a budget in seconds of the items finished in time."""
        begun = time.monotonic()
        return [self._task(task, begun) for task in tasks]

    def _task(self, task: PreparedTask, begun: float) -> TaskResult:
        started = time.monotonic()
        order = range(len(task.items))
        finished: list[int] = []
        # In time order no item may be preferred for its length or its place in the file.
        chunks = [list(order)]
        if self.seconds:
            mixed = _mixed(len(task.items))
            chunks = [mixed[at : at + ITEMS_A_LOOK] for at in range(0, len(mixed), ITEMS_A_LOOK)]
        for chunk in chunks:
            spent = self.engine.ranks.from_main(time.monotonic() - begun)
            if self.seconds and spent >= self.seconds:
                break
            self._answer(task, chunk)
            finished += chunk
        rows = self._rows(task, sorted(finished))
        return TaskResult(
            name=task.name,
            rows=rows,
            metrics=summed(rows) | task.task.whole(rows),
            of=task.of,
            main=task.task.main,
            seconds=time.monotonic() - started,
            about=task.task.about(),
        )

    def _answer(self, task: PreparedTask, chunk: Sequence[int]) -> None:
        """Put the answers of items into the cache."""
        prompts: list[Asked] = []
        requests: dict[str, Request] = {}
        for index in chunk:
            asks = zip(task.items[index].asks, task.requests[index], strict=True)
            for ask, made in asks:
                if isinstance(ask, Prompt):
                    prompts += asked(ask, self.tokenizer, self.engine.longest)
                requests |= {request.key: request for request in made or ()}
        missing = [key for key in requests if key not in self.cache.known]
        for start in range(0, len(missing), AT_ONCE):
            self._score({key: requests[key] for key in missing[start : start + AT_ONCE]})
        unwritten = {one.key: one for one in prompts if one.key not in self.cache.known}
        self._generate(list(unwritten.values()))

    def _score(self, requests: Mapping[str, Request]) -> None:
        keys = list(requests)

        def on_round(done: Done) -> None:
            self.cache.add((keys[index], list(score)) for index, score in done)
            self.watch()

        self.engine.score(list(requests.values()), on_round)

    def _generate(self, prompts: Sequence[Asked]) -> None:
        at_once = ROWS * self.engine.ranks.batch[1]
        for start in range(0, len(prompts), at_once):
            some, engine = prompts[start : start + at_once], self.engine
            texts = generated(
                engine.model, self.tokenizer, some, device=engine.device, ranks=engine.ranks
            )
            self.cache.add((one.key, text) for one, text in zip(some, texts, strict=True))
            self.watch()

    def _rows(self, task: PreparedTask, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of items, judged by the ranks by index: the judge of a program runs it."""
        ranks = self.engine.ranks
        judged: Any
        try:
            judged = [self._row(task, index) for index in indices[ranks.rank :: ranks.size]]
        except Exception as error:  # of a judge of the user's
            judged = error
        rows: list[Any] = [None] * len(indices)
        for rank, part in enumerate(ranks.of_all(judged)):
            if isinstance(part, Exception):
                raise part
            rows[rank :: ranks.size] = part
        return rows

    def _row(self, task: PreparedTask, index: int) -> dict[str, Any]:
        """Judge an item by the answers in the cache."""
        item, answers = task.items[index], []
        for ask, made in zip(item.asks, task.requests[index], strict=True):
            if isinstance(ask, Prompt):
                samples = asked(ask, self.tokenizer, self.engine.longest)
                texts = (self.cache.known[one.key] for one in samples)
                answers.append(Generated(tuple(texts)))
            else:
                answers.append(_total(self.cache.known[request.key] for request in made or ()))
        judged = task.task.judge(item, answers)
        row: dict[str, Any] = {"id": item.id, "metrics": judged.metrics}
        if judged.weights:
            row["weights"] = dict(judged.weights)
        if item.cluster is not None:
            row["cluster"] = item.cluster
        return row | _answered(answers) | dict(judged.detail)


def _total(values: Iterable[Sequence[float]]) -> Score:
    """The score of a document from those of its windows."""
    logprob, tokens, matches = 0.0, 0, 0
    for part in values:
        logprob, tokens, matches = logprob + part[0], tokens + int(part[1]), matches + int(part[2])
    return Score(logprob, tokens, matches)


def _answered(answers: Sequence[Answer]) -> dict[str, Any]:
    scores = [list(answer) for answer in answers if isinstance(answer, Score)]
    texts = [text for answer in answers if isinstance(answer, Generated) for text in answer.texts]
    columns = {"scores": scores, "texts": texts}
    return {name: values for name, values in columns.items() if values}


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """The metrics of a task from the rows of its items; perplexity beside a loss of texts."""
    names = dict.fromkeys(name for row in rows for name in row["metrics"])
    metrics = {}
    for name in names:
        having = [row for row in rows if name in row["metrics"]]
        weighted = any(name in row.get("weights", ()) for row in having)
        weights = [row.get("weights", {}).get(name, 1.0) for row in having] if weighted else None
        if weights is not None and not any(weights):
            metrics[name] = Interval(value=math.nan, n=len(having))
            continue
        # an item without a cluster is one of its own
        clusters = [row.get("cluster") or number for number, row in enumerate(having)]
        values = [row["metrics"][name] for row in having]
        metrics[name] = mean(values, weights=weights, clusters=clusters)
        if weights is None and len(set(clusters)) == len(values):
            metrics[name] = _as_rate(metrics[name], values)
        if name == "loss" and "token_accuracy" in names:
            loss = metrics[name]
            value = perplexity(loss.value)
            error = None if loss.stderr is None else value * loss.stderr  # by the slope of exp
            low, high = (
                edge if edge is None else perplexity(edge) for edge in (loss.low, loss.high)
            )
            metrics["perplexity"] = Interval(
                value=value, n=loss.n, stderr=error, low=low, high=high
            )
    return metrics


def _as_rate(estimate: Interval, values: Sequence[float]) -> Interval:
    """An estimate with Wilson's interval where every item is right or wrong."""
    if not all(value in (0.0, 1.0) for value in values):
        return estimate
    rate = wilson(int(sum(values)), len(values))
    return replace(estimate, low=rate.low, high=rate.high)


def _mixed(count: int) -> list[int]:
    """The numbers below `count` in a fixed order without a pattern."""
    order = list(range(count))
    Random(count).shuffle(order)
    return order
