"""Rewards for programs: Python tests in the sandbox."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forge.rewards.completion import Completion, Reward, completion_text
from forge.tasks.program import FENCE, Trial, tried


class PythonTests(Reward):
    """The share of the row's `tests` that a program passes: a list of Python texts, or one text.

    The program is the first fenced block of the completion, else all of it. seconds, memory (MiB):
    limits of a program and its test.
    """

    def __init__(self, seconds: float = 5.0, memory: int = 512, processes: int = 0) -> None:
        self.seconds, self.memory = seconds, memory
        self.processes = processes or os.cpu_count() or 1

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.seconds <= 0 or self.memory <= 0 or self.processes <= 0:
            yield "seconds, memory and processes are above 0.", "seconds=5"

    def __call__(
        self, completions: Sequence[Completion], tests: Sequence[Any]
    ) -> list[float | None]:
        programs = [
            [f"{code_in(completion_text(text))}\n{test}" for test in _listed(of_row)]
            for text, of_row in zip(completions, tests, strict=True)
        ]
        different = list(dict.fromkeys(program for row in programs for program in row))
        with ThreadPoolExecutor(self.processes) as pool:
            trials = pool.map(lambda text: tried(text, self.seconds, self.memory), different)
            by_program = dict(zip(different, trials, strict=True))
        _warn_of(by_program.values())
        passed = [[by_program[program].status == "passed" for program in row] for row in programs]
        return [sum(row) / len(row) if row else None for row in passed]


def code_in(text: str) -> str:
    """The first fenced block of a text, else the text."""
    block = FENCE.search(text)
    return block[1] if block else text


def _listed(tests: Any) -> list[str]:
    return [tests] if isinstance(tests, str) else list(tests or ())


def _warn_of(trials: Iterator[Trial] | Any) -> None:
    """Warn, once a process, of what this system cannot isolate."""
    if lacking := sorted({name for trial in trials for name in trial.not_isolated}):
        warnings.warn(f"programs run here without isolation of {', '.join(lacking)}", stacklevel=2)
