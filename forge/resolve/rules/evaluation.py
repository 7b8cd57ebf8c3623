"""Rules on evaluation: its sets, and the metrics that a run is judged by."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from forge.config.bounds import fits, kind
from forge.config.checkpoint import Checkpoint
from forge.config.data import Data, Files
from forge.config.eval import Eval
from forge.config.eval_sets import KIND, NAME, kinds, metric_names, options_of, schema_of
from forge.config.field import types_of
from forge.config.problems import closest, did_you_mean
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.train import Train
from forge.resolve.rules.run import path_fault


@rule("eval.needed", "eval.enabled", "eval.target", "eval.patience", "checkpoint.keep_best")
def needed(eval: Eval, checkpoint: Checkpoint) -> Findings:
    """eval.target, eval.patience and checkpoint.keep_best need eval.enabled=true."""
    wants = {"eval.target": eval.target is not None, "eval.patience": eval.patience}
    wants["checkpoint.keep_best"] = checkpoint.keep_best
    for key in (key for key, wanted in wants.items() if wanted and not eval.enabled):
        yield key, "eval.enabled=true"


@rule("eval.interval", "eval.interval", "eval.patience", "train.max_steps", warning=True)
def eval_interval(eval: Eval, train: Train) -> Findings:
    """eval.patience needs more than one evaluation: eval.interval less than train.max_steps."""
    steps = train.max_steps
    if eval.enabled and eval.patience and eval.interval >= steps:
        yield "eval.interval", f"eval.interval={max(steps // 10, 1)}"


@rule("eval.metric", "eval.metric", "eval.enabled", "eval.sets")
def metric(config: Config, eval: Eval) -> Findings:
    """eval.metric is one that the objective reports, or SET/METRIC with a set of eval.sets."""
    names = list(metric_names(config))
    if not names and eval.enabled:
        yield "eval.enabled", "the objective reports no metrics.", "eval.enabled=false"
    elif eval.metric not in names and eval.enabled:
        what = f"there is no metric {eval.metric}."
        yield "eval.metric", what, _meant(eval.metric, names, "eval.metric=")


@rule("eval.sets")
def sets(config: Config, eval: Eval) -> Findings:
    """A set of eval.sets has options of the data group that say what is read; all of it counts."""
    for name, entry in eval.sets.items():
        key = f"eval.sets.{name}"
        if not NAME.fullmatch(name):
            what = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
            yield "eval.sets", what, "another name for the set"
        elif not isinstance(entry, dict):
            what = "a set has options of data, and this is a value."
            yield f"{key}={entry}", what, f"leave it out; +{key}.path=my.txt names a text"
        elif (schema := schema_of(config, entry)) is None:
            what = f"data has no choice {entry[KIND]} that a set could be read as."
            yield f"{key}.{KIND}", what, _meant(str(entry[KIND]), kinds(), f"{key}.{KIND}=")
        else:
            yield from _faults(key, entry, schema)


def _faults(key: str, entry: dict[str, Any], schema: type[Data]) -> Findings:
    """What is wrong with the options of a set."""
    hints, known = types_of(schema), options_of(schema)
    for option, value in entry.items():
        at = f"{key}.{option}"
        if option == KIND:
            continue
        if option not in known:
            what = f"a set that is read as {schema.__name__} has no option '{option}'."
            meant = did_you_mean([f"+{key}.{one}" for one in closest(option, known)])
            yield at, what, meant or f"it has {', '.join(known) or 'none'}"
        elif not fits(value, hints[option]):
            yield at, f"it must be {kind(hints[option])}.", "another value"
        elif value and known[option].metadata.get("path") and (fault := path_fault(value)):
            yield at, *fault
    if (
        issubclass(schema, Files)
        and not entry.keys() - known.keys() - {KIND}
        and not entry.get("path")
    ):
        yield key, "it has no path of what is evaluated.", f"+{key}.path=my.jsonl"


def _meant(value: str, known: Collection[str], assign: str) -> str:
    """What to type in place of a value."""
    near = did_you_mean([assign + other for other in closest(value, known)])
    return near or f"one of {', '.join(assign + other for other in known)}"


@rule("run.objective", "run.objective", "eval.enabled")
def objective(config: Config, run: Run, eval: Eval) -> Findings:
    """run.objective names a metric that the run has: an eval/ one needs eval.enabled=true."""
    name, names = run.objective or "", list(metric_names(config))
    group, _, metric = name.partition("/")
    if group == "eval" and not eval.enabled:
        yield "run.objective", "eval.enabled=true"
    elif group == "eval" and metric not in (*names, eval.metric):  # which has a rule of its own
        what = f"there is no metric {name}."
        yield "run.objective", what, _meant(metric, names, "run.objective=eval/")
