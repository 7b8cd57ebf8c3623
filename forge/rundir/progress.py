"""How far a run has come, read from the end of the files that it writes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forge.rundir import attempts
from forge.rundir.directory import read_result
from forge.rundir.stored import newest, opened, parsed, read_json, read_yaml

TAIL = 16_384  # bytes that are read of the end of a file
METRICS, PERFORMANCE, DERIVED = "metrics.jsonl", "performance.jsonl", "derived.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Steps done, of so many; the last training loss and evaluation; seconds left at the pace of
    the last rows, None where unknown.
    """

    step: int = 0
    of: int | None = None
    loss: float | None = None
    evaluation: tuple[str, float] | None = None
    left: float | None = None


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What was logged at a step, as far as it was; seconds left at the pace up to there."""

    step: int
    loss: float | None
    evaluation: tuple[str, float] | None
    tokens_per_second: float | None
    left: float | None


def progress(run_dir: Path, now: float | None = None) -> Progress:
    """What the files of a run say; nothing of one that has not begun."""
    rows = tail(run_dir / METRICS)
    clock = tail(run_dir / PERFORMANCE)
    losses = [loss for row in rows if (loss := _number(row, "train/loss")) is not None]
    steps = [row["step"] for row in rows if isinstance(row.get("step"), int)]
    result = read_result(run_dir)
    step = max(
        [*steps[-1:], result.step if result else 0, attempts.reached(run_dir) if not steps else 0]
    )
    of = last_step(run_dir)
    return Progress(
        step=step,
        of=of,
        loss=losses[-1] if losses else None,
        evaluation=_evaluation(rows),
        left=_left(clock, step, of, now or time.time()),
    )


def last_logged(run_dir: Path, count: int) -> list[Logged]:
    """The last steps that were logged, oldest first."""
    clock, of = tail(run_dir / PERFORMANCE), last_step(run_dir)
    by_step: dict[int, dict[str, Any]] = {}
    for row in (*tail(run_dir / METRICS), *clock):
        if isinstance(row.get("step"), int):
            by_step.setdefault(row["step"], {}).update(row)
    return [
        Logged(
            step=step,
            loss=_number(row, "train/loss"),
            evaluation=_evaluation([row]),
            tokens_per_second=_number(row, "tokens_per_second"),
            left=_left(clock, step, of, row["time"]) if _has_time(row) else None,
        )
        for step, row in sorted(by_step.items())[-count:]
    ]


def last_step(run_dir: Path) -> int | None:
    """The step at which a run ends, unless a limit of time or an evaluation ends it before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        for derived in read_json(run_dir / DERIVED):
            if derived["key"] == "train.max_steps":
                return int(derived["value"])
    try:
        return int(read_yaml(newest(run_dir))["train"]["max_steps"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def tail(file: Path) -> list[dict[str, Any]]:
    """The last rows of a file of JSON lines."""
    return list(parsed(last_lines(file)))


def last_lines(file: Path, count: int | None = None) -> list[str]:
    """The last lines of a file that may be long; none of one that is not there."""
    try:
        with opened(file) as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(size - TAIL, 0))
            lines = source.read(TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []
    lines = lines[1:] if size > TAIL and len(lines) > 1 else lines
    return lines if count is None else lines[-count:]


def _evaluation(rows: list[dict[str, Any]]) -> tuple[str, float] | None:
    for row in reversed(rows):
        for name in ("eval/loss", "eval/bits_per_byte"):
            if (value := _number(row, name)) is not None:
                return name, value
    return None


def _number(row: Mapping[str, Any], name: str) -> float | None:
    """A value of a row; None where it is not there, or was not finite."""
    return float(row[name]) if isinstance(row.get(name), int | float) else None


def _left(clock: list[dict[str, Any]], step: int, of: int | None, now: float) -> float | None:
    """At the pace of the last rows, evaluations and checkpoints included; less what has passed
    since the last.
    """
    known = [row for row in clock if _has_time(row)]
    known = [row for row in known if row["step"] <= step]
    if of is None or len(known) < 2:
        return None
    first, last = known[0], known[-1]
    steps, seconds = last["step"] - first["step"], last["time"] - first["time"]
    if steps <= 0 or seconds < 0:
        return None
    return max((of - last["step"]) * seconds / steps - max(now - last["time"], 0.0), 0.0)


def _has_time(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("step"), int) and _number(row, "time") is not None
