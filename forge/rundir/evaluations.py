"""Evaluations of tasks in a run directory: a summary of each, and a row for each item."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.rundir.files import read_object, read_rows, replacing, write_json

FOLDER, CACHE = "eval", "cache"


def cache_path(run_dir: Path, weights: str) -> Path:
    """The file of answers of these weights."""
    return run_dir / FOLDER / CACHE / f"{weights}.jsonl"


def save(
    run_dir: Path, task: str, step: int, rows: Iterable[Mapping[str, Any]], about: Mapping[str, Any]
) -> Path:
    """Write the rows of an evaluation, then its summary; returns the path of the rows."""
    folder = run_dir / FOLDER / task
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}.jsonl"
    with replacing(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        for row in rows:
            print(json.dumps(_finite(row), ensure_ascii=False), file=file)
    write_json(folder / f"{step}.json", _finite(about))
    return path


def _finite(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summaries(run_dir: Path) -> list[dict[str, Any]]:
    """All readable summaries, by task, then by step."""
    read = []
    for path in (run_dir / FOLDER).glob("*/*.json"):
        with suppress(OSError, ValueError):
            summary = read_object(path)
            if isinstance(summary.get("metrics"), dict) and isinstance(summary.get("step"), int):
                read.append({**summary, "task": str(summary.get("task", path.parent.name))})
    return sorted(read, key=lambda summary: (summary["task"], summary["step"]))


def latest(run_dir: Path) -> dict[str, dict[str, Any]]:
    """The summary of each task at its last step."""
    return {summary["task"]: summary for summary in summaries(run_dir)}


def headline(summary: Mapping[str, Any]) -> tuple[str, float, float | None] | None:
    """The main metric of a summary: its name, value and standard error; None without a value."""
    name = summary.get("main")
    metric = summary["metrics"].get(name)
    if not isinstance(metric, dict) or not isinstance(metric.get("value"), int | float):
        return None
    error = metric.get("stderr")
    return str(name), float(metric["value"]), error if isinstance(error, int | float) else None


def interval_text(metric: Mapping[str, Any]) -> str:
    """The 95 % interval of a metric of a summary; '' where there is none."""
    low, high = metric.get("low"), metric.get("high")
    known = all(isinstance(edge, int | float) and edge == edge for edge in (low, high))
    return f"{low:.4f} to {high:.4f}" if known else ""


def item_rows(run_dir: Path, task: str, step: int) -> list[dict[str, Any]]:
    """The row of each item of an evaluation."""
    return read_rows(run_dir / FOLDER / task / f"{step}.jsonl")
