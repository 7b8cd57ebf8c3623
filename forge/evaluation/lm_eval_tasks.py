"""Tasks of lm-eval, asked by lm-eval itself, with results as of forge's own tasks."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forge.compose.lm_eval_words import Harness
from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal
from forge.evaluation.run import TaskResult
from forge.statistics.interval import Interval
from forge.tasks.task import LN2

INSTALL = "pip install 'forge-lm[eval]'"
PREFIX = "lm_eval_"
PLAIN = "none"
"""lm-eval's name for the filter that changes nothing."""


def task_manager(harness: Harness) -> Any:
    """lm-eval's table of tasks: the folder's own alone, where that is enough, else with its
    thousands of others, which take seconds to find. Raises ConfigError for an unknown task, and
    where lm-eval is missing.
    """
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        message = "lm-eval is not installed."
        raise refusal("lm_eval", message, INSTALL, COMMAND_LINE) from None
    if harness.include:
        small = TaskManager(include_path=harness.include, include_defaults=False)
        if set(harness.tasks) <= set(small.all_tasks):
            return small
    manager = TaskManager(include_path=harness.include)
    for task in harness.tasks:
        if task not in manager.all_tasks:
            near = did_you_mean(closest(task, manager.all_tasks))
            hint = near or "a name of `lm_eval ls tasks`, or lm_eval.include=FOLDER"
            message = f"lm-eval has no task {task}."
            raise refusal(f"lm_eval=[{task}]", message, hint, COMMAND_LINE)
    return manager


def check_tasks(harness: Harness) -> None:
    """Find the tasks and their data, before a model is loaded. Raises ConfigError, also where the
    data are neither on this machine nor to be had.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = task_manager(harness)
    for task in harness.tasks:
        try:
            manager.load([task])
        except ImportError as error:
            message = f"lm-eval cannot build the task: {error}."
            raise refusal(f"lm_eval=[{task}]", message, "install it", COMMAND_LINE) from None
        except Exception as error:  # of lm-eval, datasets, the hub's client, or a task's own code
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            message = f"its data are not on this machine, and cannot be fetched ({reason})."
            hint = "fetch them once with a network: HF_HOME keeps them; or give lm_eval.include="
            hint += "FOLDER with tasks of local files"
            raise refusal(f"lm_eval=[{task}]", message, hint, COMMAND_LINE) from None


def ask_tasks(
    harness: Harness, model: Any, *, items: int = 0, main: bool = True
) -> list[TaskResult]:
    """The result of each task, or of each group with its own metrics; called alike by all ranks.

    items: the first of each task, as lm-eval's limit; 0 = all. main: of the ranks, which alone
    estimates errors by resampling.
    """
    from lm_eval.evaluator import simple_evaluate

    started = time.monotonic()
    answer: Any = simple_evaluate(
        model=model,
        tasks=list(harness.tasks),
        num_fewshot=harness.shots,
        limit=items or None,
        apply_chat_template=harness.chat_template,
        task_manager=task_manager(harness),
        bootstrap_iters=100_000 if main else 0,
    )
    if not main or answer is None:
        return []
    seconds = time.monotonic() - started
    made = list(_results(harness, answer))
    for result in made:
        result.seconds = seconds / len(made)
    return made


def _results(harness: Harness, answer: Mapping[str, Any]) -> Iterator[TaskResult]:
    leaves = dict.fromkeys(answer["samples"])
    groups = answer.get("groups", {})
    for name in harness.tasks:
        if name not in groups:
            continue
        inside = [leaf for leaf in leaves if leaf in _inside(name, answer["group_subtasks"])]
        yield _result(name, groups[name], inside, answer, joined=True)
        for leaf in inside:
            del leaves[leaf]
    for name in leaves:
        yield _result(name, answer["results"][name], [name], answer, joined=False)


def _inside(name: str, subtasks: Mapping[str, Sequence[str]]) -> set[str]:
    """The tasks and groups below a group."""
    below = set(subtasks.get(name, ()))
    return below.union(*(_inside(each, subtasks) for each in below))


def _result(
    name: str, metrics: Mapping[str, Any], leaves: Sequence[str], answer: Any, *, joined: bool
) -> TaskResult:
    rows = []
    for leaf in leaves:
        of_leaf = list(sample_rows(answer["samples"][leaf]))
        if joined:
            of_leaf = [{**row, "id": f"{leaf}/{row['id']}", "cluster": leaf} for row in of_leaf]
        rows += of_leaf
    counts = [answer["n-samples"][leaf] for leaf in leaves]
    estimates = {}
    for key, value in metrics.items():
        metric, _, kind = key.partition(",")
        if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = metrics.get(f"{metric}_stderr,{kind}")
        stderr = float(error) if isinstance(error, int | float) else None
        estimates[metric_name(metric, kind)] = Interval(
            value=float(value), n=len(rows), stderr=stderr
        )
    about: dict[str, Any] = {"shots": [answer["n-shot"][leaf] for leaf in leaves]}
    about["versions"] = {leaf: answer["versions"].get(leaf) for leaf in leaves}
    return TaskResult(
        name=result_name(name),
        rows=rows,
        metrics=estimates,
        of=sum(count["original"] for count in counts),
        main=next(iter(estimates), ""),
        about={**about, "lm_eval": answer.get("lm_eval_version")},
    )


def result_name(task: str) -> str:
    """The name of a task's results, apart from those of forge's own tasks."""
    return PREFIX + re.sub(r"[^\w-]", "_", task)


def metric_name(metric: str, kind: str) -> str:
    """The name of a metric after a filter."""
    return metric if kind == PLAIN else f"{metric}_{re.sub(r'[^0-9A-Za-z_-]', '_', kind)}"


def sample_rows(samples: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each document, from lm-eval's samples: one for each document and filter.

    Metrics that are numbers stand under `metrics`, others under `values`; of a log-likelihood and
    its bytes the bits per byte, weighted by bytes.
    """
    by_document: dict[Any, dict[str, Any]] = {}
    for sample in samples:
        row = by_document.setdefault(sample["doc_id"], {"id": str(sample["doc_id"]), "metrics": {}})
        row["responses"] = [list(answers) for answers in sample["resps"]]
        for metric in sample["metrics"]:
            name, value = metric_name(metric, sample["filter"]), sample[metric]
            if isinstance(value, bool | int | float):
                row["metrics"][name] = float(value)
            elif metric == "bits_per_byte":
                row["metrics"][name] = -value[0] / (LN2 * value[1])
                row.setdefault("weights", {})[name] = float(value[1])
            else:
                row.setdefault("values", {})[name] = _plain(value)
    yield from by_document.values()


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)
