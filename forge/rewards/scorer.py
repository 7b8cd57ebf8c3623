"""All rewards of completions: the functions of the `rewards` section, and their weighted sum."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge.rewards.function import RewardError, RewardFunction, checked, explained
from forge.rewards.isolated import Worker, failed, too_long, waited_for

MAX_WORKERS = 8

__all__ = ["RewardError", "Scorer", "Scores"]


@dataclass(frozen=True)
class Scores:
    """Rewards of completions. total: the weighted sum over the rewards that judged a completion,
    None where none did. by_name: the values of each reward, without its weight.
    """

    total: list[float | None]
    by_name: dict[str, list[float | None]]


class Scorer:
    """The rewards of a run; a function that needs it runs in processes with a time limit.

    sections: entries of `rewards` by name. trust: prefixes of targets outside of forge. workers:
    processes of a reward that may be split, 0 = the number of CPUs, at most 8. Raises ConfigError
    for a reward that cannot be built.
    """

    def __init__(
        self,
        sections: Mapping[str, Mapping[str, Any]],
        trust: Sequence[str] = (),
        *,
        workers: int = 0,
    ) -> None:
        count = workers or min(os.cpu_count() or 1, MAX_WORKERS)
        self.functions = {name: RewardFunction(name, e, trust) for name, e in sections.items()}
        self._workers = {
            name: [Worker(name, f.entry, trust) for _ in range(count if f.splits else 1)]
            for name, f in self.functions.items()
            if f.isolated
        }

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise RewardError for a column that a reward needs and rows lack."""
        for function in self.functions.values():
            function.check_columns(columns)

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
    ) -> Scores:
        """Judge completions. prompts, completions: texts, or lists of messages. columns: values of
        the rows by column, one a completion. Raises RewardError for a reward that raises, takes
        longer than its timeout, or returns anything but a number or None for each completion.
        """
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
        values = {name: list(column) for name, column in {**columns, **given}.items()}
        given = {name: values[name] for name in given}
        arguments = {
            name: function.arguments(given, {column: values[column] for column in columns})
            for name, function in self.functions.items()
        }
        begun = {
            name: self._begin(name, arguments[name], len(completions)) for name in self._workers
        }
        results = self._here({name: a for name, a in arguments.items() if name not in begun})
        results |= {name: self._collect(name, *begun[name]) for name in begun}
        by_name = {name: checked(name, results[name], len(completions)) for name in self.functions}
        return Scores(total=self._total(by_name, len(completions)), by_name=by_name)

    def close(self) -> None:
        """End all processes."""
        for workers in self._workers.values():
            for worker in workers:
                worker.close()

    def _total(self, by_name: Mapping[str, list[float | None]], count: int) -> list[float | None]:
        total: list[float | None] = [None] * count
        for name, values in by_name.items():
            weight = self.functions[name].options.weight
            for index, value in enumerate(values):
                if value is not None:
                    total[index] = (total[index] or 0.0) + weight * value
        return total

    def _begin(
        self, name: str, arguments: Mapping[str, Any], count: int
    ) -> tuple[list[tuple[Worker, int]], float]:
        """Start a call in processes: the processes with their completions, and the time limit."""
        begun, workers = [], self._workers[name]
        deadline = time.monotonic() + self.functions[name].options.timeout
        size = max(-(-count // len(workers)), 1)
        for worker, first in zip(workers, range(0, count, size), strict=False):
            rows = slice(first, first + size)
            worker.begin({key: value[rows] for key, value in arguments.items()})
            begun.append((worker, len(range(count)[rows])))
        return begun, deadline

    def _collect(self, name: str, begun: list[tuple[Worker, int]], deadline: float) -> Any:
        timeout = self.functions[name].options.timeout
        try:
            if not self.functions[name].splits:
                return begun[0][0].result(deadline, timeout) if begun else []
            values = []
            for worker, count in begun:
                values += checked(name, worker.result(deadline, timeout), count)
            return values
        except RewardError:
            self.close()  # a process left at work would answer the next call
            raise

    def _here(self, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Call functions in this process, coroutines together."""
        results: dict[str, Any] = {}
        awaited = {name: a for name, a in arguments.items() if self.functions[name].is_async}
        for name in (name for name in arguments if name not in awaited):
            function = self.functions[name]
            call = (function.call, arguments[name])
            results[name] = _in_time(name, function.options.timeout, lambda c=call: waited_for(*c))
        if awaited:
            longest = max(self.functions[name].options.timeout for name in awaited)
            gathered = _in_time(
                ", rewards.".join(awaited),
                longest + 1,
                lambda: asyncio.run(self._gathered(awaited)),
            )
            for name, value in gathered.items():
                if isinstance(value, TimeoutError):
                    raise too_long(name, self.functions[name].options.timeout)
                if isinstance(value, Exception):
                    raise failed(name, explained(value))
            results |= gathered
        return results

    async def _gathered(self, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        calls = [
            asyncio.wait_for(self.functions[name].call(**a), self.functions[name].options.timeout)
            for name, a in arguments.items()
        ]
        return dict(
            zip(arguments, await asyncio.gather(*calls, return_exceptions=True), strict=True)
        )


def _in_time(name: str, timeout: float, call: Callable[[], Any]) -> Any:
    """Call a function in a thread, which is left behind at the time limit. Raises RewardError."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, call()))
        except BaseException as error:  # SystemExit too
            outcome.extend((False, explained(error)))

    thread = threading.Thread(target=run, daemon=True, name=f"rewards.{name}")
    thread.start()
    thread.join(timeout)
    if thread.is_alive() or not outcome:
        raise too_long(name, timeout)
    succeeded, value = outcome
    if not succeeded:
        raise failed(name, value)
    return value
