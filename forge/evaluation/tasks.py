"""From entries of `eval.tasks` to results in a run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge.config.data.text import Data
from forge.config.eval import Eval
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation.prepared import Limits, PreparedTask, ready
from forge.evaluation.run import TaskResult
from forge.evaluation.texts import Texts
from forge.rundir import evaluations
from forge.rundir.provenance import versions
from forge.tasks.declared import built, is_text
from forge.tasks.task import Task


def tasks_built(
    entries: Mapping[str, Any], data: Data, tokenizer: Tokenizer, trust: Sequence[str] = ()
) -> dict[str, Task]:
    """The task of each entry. Raises ValueError for an entry that cannot be built."""
    tasks: dict[str, Task] = {}
    for name, entry in entries.items():
        if is_text(entry):
            tasks[name] = Texts(entry, name=name, data=data, tokenizer=tokenizer, trust=trust)
        else:
            tasks[name] = built(name, entry, trust=trust)
    return tasks


def tasks_ready(
    entries: Mapping[str, Any], config: Config, tokenizer: Tokenizer, section: Eval, longest: int
) -> list[PreparedTask]:
    """Tasks encoded for a tokenizer and a model of `longest` tokens. Raises ValueError for what
    cannot be asked.
    """
    tasks = tasks_built(entries, config.data, tokenizer, config.run.trust)
    limits = Limits(longest=longest, too_long=section.too_long, items=section.tasks_items)
    return ready(tasks, tokenizer, limits)


def flat_metrics(results: Sequence[TaskResult], *, errors: bool = True) -> dict[str, float]:
    """Every metric as TASK/METRIC. errors: also its standard error, as TASK/METRIC_stderr."""
    values: dict[str, float] = {}
    for result in results:
        for name, estimated in result.metrics.items():
            values[f"{result.name}/{name}"] = estimated.value
            if errors and estimated.stderr is not None:
                values[f"{result.name}/{name}_stderr"] = estimated.stderr
    return values


def summary(result: TaskResult, step: int, about: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a task's evaluation. about: facts on model, layout and checkpoint."""
    metrics = {
        name: {key: getattr(value, key) for key in ("value", "stderr", "low", "high", "n")}
        for name, value in result.metrics.items()
    }
    return {
        "task": result.name,
        "step": step,
        "main": result.main,
        "metrics": metrics,
        "items": len(result.rows),
        "of": result.of,
        "seconds": round(result.seconds, 3),
        "data": result.about,
        **about,
        "versions": versions(),
    }


def save(
    run_dir: Path,
    results: Sequence[TaskResult],
    step: int,
    entries: Mapping[str, Any],
    about: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Write rows and summary of each result; returns the summaries."""
    written = []
    for result in results:
        content = summary(result, step, {"config": dict(entries[result.name]), **about})
        evaluations.save(run_dir, result.name, step, result.rows, content)
        written.append(content)
    return written


def facts(config: Config, weights: str | None) -> dict[str, Any]:
    """Facts on what the numbers depend on in their last digits."""
    degrees = {axis: size for axis, size in config.parallel.degrees().items() if size > 1}
    return {
        "precision": config.precision.mixed_precision,
        "device": config.run.device,
        "layout": degrees,
        "weights": weights,
    }
