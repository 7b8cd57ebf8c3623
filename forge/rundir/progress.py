"""The progress of a run, from the ends of its files."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.rundir import versions
from forge.rundir.files import last_rows, rows_if_readable
from forge.rundir.history import METRICS, PERFORMANCE, Rows
from forge.rundir.outcome import last_saved_step, read_result
from forge.rundir.saved_config import read_plain

SAMPLES = "samples.jsonl"


def row_files(run_dir: Path) -> list[Path]:
    """The files cut back to a checkpoint when a run continues."""
    return [run_dir / name for name in (METRICS, PERFORMANCE, SAMPLES)]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Steps done, of all steps; the last training loss, evaluation and rate; seconds left.

    left: at the pace of the last rows. None where unknown.
    """

    step: int = 0
    of: int | None = None
    loss: float | None = None
    evaluation: tuple[str, float] | None = None
    tokens_per_second: float | None = None
    left: float | None = None


def progress(
    run_dir: Path, now: float | None = None, *, config: Mapping[str, Any] | None = None
) -> Progress:
    """Read the progress of a run; config: the config in force, as plain data, where already
    read.
    """
    rows, clock = last_rows(run_dir / METRICS), last_rows(run_dir / PERFORMANCE)
    losses = [loss for row in rows if (loss := _number(row, "train/loss")) is not None]
    steps = [row["step"] for row in rows if isinstance(row.get("step"), int)]
    result = read_result(run_dir)
    logged = steps[-1] if steps else last_saved_step(run_dir)
    step, n_steps = max(logged, result.step if result else 0), last_step(run_dir, config)
    return Progress(
        step=step,
        of=n_steps,
        loss=losses[-1] if losses else None,
        evaluation=_evaluation(rows),
        left=_left(clock, step, n_steps, now or time.time()),
    )


def last_logged(run_dir: Path, count: int) -> list[Progress]:
    """The last logged steps, oldest first."""
    clock, n_steps = last_rows(run_dir / PERFORMANCE), last_step(run_dir)
    by_step: dict[int, dict[str, Any]] = {}
    for row in (*last_rows(run_dir / METRICS), *clock):
        if isinstance(row.get("step"), int):
            by_step.setdefault(row["step"], {}).update(row)
    return [
        Progress(
            step=step,
            loss=_number(row, "train/loss"),
            evaluation=_evaluation([row]),
            tokens_per_second=_number(row, "tokens_per_second"),
            left=_left(clock, step, n_steps, row["time"]) if _has_time(row) else None,
        )
        for step, row in sorted(by_step.items())[-count:]
    ]


def best_logged(run_dir: Path, metric: str, *, higher: bool) -> tuple[float, int] | None:
    """The best value of a metric up to now, and its first step."""
    key = json.dumps(metric)
    rows = (row for file in (METRICS, PERFORMANCE) for row in rows_if_readable(run_dir / file, key))
    pairs = [
        (value, row["step"])
        for row in rows
        if (value := _number(row, metric)) is not None and isinstance(row.get("step"), int)
    ]
    return min(
        pairs,
        key=lambda pair: (
            -pair[0] if higher else pair[0],
            pair[1],
        ),
        default=None,
    )


def last_step(run_dir: Path, config: Mapping[str, Any] | None = None) -> int | None:
    """The last step of a run, unless a time limit or an evaluation ends the run before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        for derived in versions.read_config_part(
            run_dir, "derived", versions.number_in_force(run_dir)
        ):
            if derived["key"] == "train.max_steps":
                return int(derived["value"])
    with suppress(ValueError, KeyError, TypeError):
        return int((config or read_plain(run_dir))["train"]["max_steps"])
    return None


def _evaluation(rows: Rows) -> tuple[str, float] | None:
    for row in reversed(rows):
        for name in ("eval/loss", "eval/bits_per_byte"):
            if (value := _number(row, name)) is not None:
                return name, value
    return None


def _number(row: Mapping[str, Any], name: str) -> float | None:
    return float(row[name]) if isinstance(row.get(name), int | float) else None


def _left(clock: Rows, step: int, of: int | None, now: float) -> float | None:
    """Seconds at the pace of the last rows, with evaluations and checkpoints.

    Less the time since the last row.
    """
    rows = [row for row in clock if _has_time(row) and row["step"] <= step]
    if of is None or len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    steps, seconds = last["step"] - first["step"], last["time"] - first["time"]
    if steps <= 0 or seconds < 0:
        return None
    return max((of - last["step"]) * seconds / steps - max(now - last["time"], 0.0), 0.0)


def _has_time(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("step"), int) and _number(row, "time") is not None
