"""Destinations of metrics: a file, the console, services, and the user's trackers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forge.rundir.files import append_row
from forge.rundir.history import METRICS, PERFORMANCE
from forge.rundir.wall_clock import goodput
from forge.training.tracker import Steps, Tables, Tracker

log = logging.getLogger(__name__)
WALL_CLOCK = frozenset({"tokens_per_second", "step_seconds", "data_seconds", "mfu", "memory_gib"})
WALL_CLOCK |= {"writing_seconds", "rewards_seconds", "log_probs_seconds"}  # of rollouts
WALL_CLOCK |= {"goodput", *(f"goodput/{name}" for name in goodput.MEANINGS)}
CONSOLE, WANDB = "console", "W&B"


class Trackers:
    """Several trackers as one; a failing tracker is closed and left out from then on.

    Each failure gives one warning. An error of JsonLines ends the run.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        """makers: opens each tracker, by its name in warnings. resumed_at: the step the run
        continues from, known before trackers open.
        """
        self._makers, self._active = makers or {}, dict[str, Tracker]()
        self._bar: Steps | None = None
        self.resumed_at = 0

    def open(self) -> Trackers:
        """Open all trackers without errors; returns self."""
        for name, make in self._makers.items():
            try:
                self._active[name] = make()
            except Exception as error:
                _warn(name, error)
        # Asked once: a check of a protocol is slow in Python 3.11.
        self._bar = bar if isinstance(bar := self._active.get(CONSOLE), Steps) else None
        return self

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, tracker in list(self._active.items()):
            self._give(name, tracker, lambda tracker=tracker: tracker.log(step, values))

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give a table to the trackers that show tables."""
        for tracker_name, tracker in list(self._active.items()):
            if isinstance(tracker, Tables):
                self._give(tracker_name, tracker, partial(tracker.table, step, name, rows))

    def step(self, step: int) -> None:
        """Move the bar after an update, without reading any of its numbers."""
        if (bar := self._bar) is not None and CONSOLE in self._active:
            self._give(CONSOLE, self._active[CONSOLE], partial(bar.step, step))

    def _give(self, name: str, tracker: Tracker, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if isinstance(tracker, JsonLines):
                raise
            _warn(name, error)
            del self._active[name]
            with contextlib.suppress(Exception):
                tracker.close()

    def close(self) -> None:
        while self._active:
            name, tracker = self._active.popitem()
            try:
                tracker.close()
            except Exception as error:
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    message = "%s failed and is off for the rest of this run, which continues: %s: %s"
    log.warning(message, name, type(error).__name__, error)


class JsonLines:
    """Writes metrics.jsonl and performance.jsonl.

    Rows are {"step": ..., **values}, and {"step": ..., "time": seconds since 1970, **WALL_CLOCK
    values}. A log without a value for a file adds no row.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def log(self, step: int, values: dict[str, float]) -> None:
        metrics = {name: value for name, value in values.items() if name not in WALL_CLOCK}
        performance = {name: value for name, value in values.items() if name in WALL_CLOCK}
        if metrics:
            append_row(self.run_dir / METRICS, {"step": step, **metrics})
        if performance:
            row = {"step": step, "time": time.time(), **performance}
            append_row(self.run_dir / PERFORMANCE, row)

    def close(self) -> None:
        """Nothing to release."""
