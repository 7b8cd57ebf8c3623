"""What a run has logged: each metric as a curve over steps, tokens and seconds of training."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forge.rundir import json_lines
from forge.rundir.stored import read_text

METRICS, PERFORMANCE = "metrics.jsonl", "performance.jsonl"


@dataclass(frozen=True)
class Series:
    """A metric where it was logged as a finite number: [n] each. tokens and seconds are NaN where a
    run has not logged them.
    """

    steps: np.ndarray
    values: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray


class Logged:
    """The columns of a run directory, read when they are first asked for."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @cached_property
    def last_step(self) -> int:
        """The last step logged, 0 where there is none."""
        return self._columns[1]

    @property
    def tokens(self) -> int | None:
        """Tokens trained on by the last log."""
        _, values = self._column("tokens")
        return int(values[-1]) if len(values) else None

    @property
    def seconds(self) -> float | None:
        """Seconds of training by the last log, without evaluation, checkpoints and waiting."""
        _, values = self._clocks[1]
        return float(values[-1]) if len(values) else None

    def series(self, name: str) -> Series:
        """The curve of one metric; empty when it was never logged. Of several values of a step the
        last one counts.
        """
        steps, values = self._column(name)
        return Series(steps, values, *(_between(steps, *known) for known in self._clocks))

    @cached_property
    def _clocks(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Tokens and seconds of training after a step: those logged, and 0 at step 0; straight
        between them.
        """
        (steps, tokens), (timed, each) = self._column("tokens"), self._column("step_seconds")
        seconds = np.cumsum(each * np.diff(timed, prepend=0))
        return _from_zero(steps, tokens), _from_zero(timed, seconds)

    @cached_property
    def _columns(self) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], int]:
        """The steps and values of every metric, and the last step: arrays, for the rows of many
        runs would fill the memory.
        """
        found: dict[str, dict[int, float]] = {}
        last = 0
        for row in (row for file in (METRICS, PERFORMANCE) for row in _rows(self.run_dir / file)):
            step = row.get("step")
            if isinstance(step, int):
                last = max(last, step)
                for name, value in row.items():
                    if isinstance(value, int | float):
                        found.setdefault(name, {})[step] = value
        return {name: _sorted(values) for name, values in found.items()}, last

    def _column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self._columns[0].get(name, (np.empty(0), np.empty(0)))


def _rows(path: Path) -> list[dict[str, Any]]:
    """All lines: at once, which is several times as fast, or one by one where a line is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        rows = json.loads(f"[{','.join(read_text(path, most=json_lines.LARGEST).splitlines())}]")
        if all(isinstance(row, dict) for row in rows):
            return rows
    return json_lines.read(path)


def _sorted(values: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """By step, those that are finite."""
    steps = sorted(values)
    found = np.array(steps, dtype=float), np.array([values[step] for step in steps], dtype=float)
    finite = np.isfinite(found[1])
    return found[0][finite], found[1][finite]


def _between(steps: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.interp(steps, known, values) if len(known) else np.full(len(steps), np.nan)


def _from_zero(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (
        (np.concatenate([[0.0], steps]), np.concatenate([[0.0], values]))
        if len(steps)
        else (steps, values)
    )
