"""What a run has logged: each metric as a curve over steps, tokens and seconds of training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forge.launch import json_lines

METRICS, PERFORMANCE = "metrics.jsonl", "performance.jsonl"


@dataclass(frozen=True)
class Series:
    """A metric where it was logged as a finite number: [n] each. tokens and seconds are NaN where a run has not logged them."""

    steps: np.ndarray
    values: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray


class Logged:
    """The rows of a run directory, read when they are first asked for."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @cached_property
    def last_step(self) -> int:
        """The last step logged, 0 where there is none."""
        return max((int(row["step"]) for row in self._rows), default=0)

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
        """The curve of one metric; empty when it was never logged. Of several values of a step the last one counts."""
        steps, values = self._column(name)
        return Series(steps, values, *(_between(steps, *known) for known in self._clocks))

    @cached_property
    def _clocks(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Tokens and seconds of training after a step: those logged, and 0 at step 0; straight between them."""
        (steps, tokens), (timed, each) = self._column("tokens"), self._column("step_seconds")
        seconds = np.cumsum(each * np.diff(timed, prepend=0))
        return _from_zero(steps, tokens), _from_zero(timed, seconds)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        rows = [row for file in (METRICS, PERFORMANCE) for row in json_lines.read(self.run_dir / file)]
        return [row for row in rows if isinstance(row.get("step"), int)]

    def _column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        found = {row["step"]: row[name] for row in self._rows if isinstance(row.get(name), int | float)}
        steps = sorted(found)
        return np.array(steps, dtype=float), np.array([found[step] for step in steps], dtype=float)


def _between(steps: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.interp(steps, known, values) if len(known) else np.full(len(steps), np.nan)


def _from_zero(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (np.concatenate([[0.0], steps]), np.concatenate([[0.0], values])) if len(steps) else (steps, values)
