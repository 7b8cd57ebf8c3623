"""Metrics as JSON lines: what the config determines in one file, what the machine and the hour do
in another.
"""

from __future__ import annotations

import time
from pathlib import Path

from forge.training.rows import METRICS, PERFORMANCE, Rows

WALL_CLOCK = frozenset({"tokens_per_second", "step_seconds", "mfu", "memory_gib"})


class JsonLines:
    """metrics.jsonl: {"step": ..., **values}; performance.jsonl: {"step": ..., "time": seconds
    since 1970, **WALL_CLOCK values}.

    Appends to what is there. A log without a value for a file adds no row to it. NaN and infinities
    are null.
    """

    def __init__(self, run_dir: Path) -> None:
        self._metrics, self._performance = Rows(run_dir / METRICS), Rows(run_dir / PERFORMANCE)

    def log(self, step: int, values: dict[str, float]) -> None:
        metrics = {name: value for name, value in values.items() if name not in WALL_CLOCK}
        performance = {name: value for name, value in values.items() if name in WALL_CLOCK}
        if metrics:
            self._metrics.append({"step": step, **metrics})
        if performance:
            self._performance.append({"step": step, "time": time.time(), **performance})

    def close(self) -> None:
        self._metrics.close()
        self._performance.close()
