"""Rules on mixtures: sources, and phases with weights of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.bounds import fits
from forge.config.data.mixture import Mix
from forge.config.data.reading import WEIGHT
from forge.config.problems import closest, did_you_mean
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.resolve.rules.entries import entry_faults

OF_PHASE = ("start_step", "dataset_weights", "lr_scale")


@rule("data.sources")
def sources(data: Mix) -> Findings:
    """A mixture has sources: options of data that say what is read, and a weight above 0."""
    if not data.sources:
        yield "data.sources", "+data.sources.mine.path=my.txt"
    for name, entry in data.sources.items():
        yield from entry_faults(data, "data.sources", name, entry, more=(WEIGHT,))
        weight = entry.get(WEIGHT, 1.0) if isinstance(entry, dict) else 1.0
        if not fits(weight, float) or not weight > 0:
            key = f"data.sources.{name}.{WEIGHT}"
            message = f"{key} ({weight}) must be a number greater than 0."
            yield key, message, f"~data.sources.{name} leaves it out; or {key}=1.0"


@rule("data.set_names", "data.sources", "eval.sets")
def set_names(config: Config, data: Mix) -> Findings:
    """No set of eval.sets has the name of a source, whose validation split is evaluated too."""
    for name in sorted(data.sources.keys() & config.eval.sets.keys()):
        yield f"eval.sets.{name}", f"another name for the set; ~eval.sets.{name} leaves it out"


@rule("data.anneal", "data.anneal_start_step", "data.anneal_weights", "data.phases")
def anneal(data: Mix) -> Findings:
    """data.anneal_start_step with data.anneal_weights is one phase, and stands for data.phases."""
    if data.anneal_start_step and data.phases:
        yield "data.anneal_start_step", f"~data.phases.{next(iter(data.phases))}"
    elif data.anneal_start_step and not data.anneal_weights and data.sources:
        yield "data.anneal_start_step", f"+data.anneal_weights.{next(iter(data.sources))}=2.0"
    elif data.anneal_weights and not data.anneal_start_step:
        yield "data.anneal_start_step", "data.anneal_start_step=100, or no data.anneal_weights"


@rule("data.phases", "data.sources", "data.anneal_weights")
def phases(data: Mix) -> Findings:
    """A phase of a mixture starts at a step of its own, and weighs its sources."""
    starts: dict[int, str] = {}
    for name, phase in data.phases.items():
        key = f"data.phases.{name}"
        if faults := list(_of_phase(key, phase)):
            yield from faults
            continue
        start = phase["start_step"]
        if start in starts:
            message = f"{key} and data.phases.{starts[start]} both start at step {start}."
            yield f"{key}.start_step", message, f"{key}.start_step={start + 1}"
        starts[start] = name
        yield from _of_weights(data, f"{key}.dataset_weights", phase.get("dataset_weights", {}))
    if data.anneal_start_step and not data.phases:
        yield from _of_weights(data, "data.anneal_weights", data.anneal_weights)


@rule("data.phase_begins", "data.phases", "data.anneal_start_step", "train.max_steps", warning=True)
def begins(data: Mix, train: Train) -> Findings:
    """A phase of a mixture begins before the end of the run, train.max_steps."""
    keys = {name: f"data.phases.{name}.start_step" for name in data.phases}
    for name, phase in data.all_phases().items():
        start = phase.get("start_step", 0) if isinstance(phase, dict) else 0
        if isinstance(start, int) and start >= train.max_steps:
            key = keys.get(name, "data.anneal_start_step")
            message = f"{name} begins at step {start}, and train.max_steps is {train.max_steps}."
            yield key, message, f"{key}={max(train.max_steps - 1, 1)}, or a longer run"


def _of_phase(key: str, phase: Any) -> Iterator[tuple[str, str, str]]:
    """Find faults in the keys and types of a phase."""
    if not isinstance(phase, dict):
        yield f"{key}={phase}", f"a phase has {', '.join(OF_PHASE)}.", f"{key}={{start_step:1}}"
        return
    for option in phase.keys() - set(OF_PHASE):
        near = did_you_mean([f"{key}.{candidate}" for candidate in closest(option, OF_PHASE)])
        yield f"{key}.{option}", f"a phase has no '{option}'.", near or f"~{key}.{option}"
        return
    start, scale = phase.get("start_step"), phase.get("lr_scale", 1.0)
    if not (isinstance(start, int) and fits(start, int) and start >= 0):
        message = f"{key}.start_step must be a step, an integer of at least 0."
        yield key, message, f"{key}={{start_step:1}}"
    if not fits(scale, float) or not scale > 0:
        yield f"{key}.lr_scale", "it must be a number greater than 0.", f"{key}.lr_scale=1.0"
    if not isinstance(phase.get("dataset_weights", {}), dict):
        yield f"{key}.dataset_weights", "it has weights by name.", f"{key}.dataset_weights.NAME=1.0"


def _of_weights(data: Mix, key: str, weights: dict[str, Any]) -> Findings:
    """Find faults in the weights of a phase."""
    for name, weight in weights.items():
        if name not in data.sources:
            near = did_you_mean([f"{key}.{candidate}" for candidate in closest(name, data.sources)])
            yield f"{key}.{name}", f"there is no source '{name}'.", near or f"~{key}.{name}"
        elif not fits(weight, float) or weight < 0:
            yield f"{key}.{name}", "a weight is a number of at least 0.", f"{key}.{name}=0.0"
    if weights.keys() >= data.sources.keys() and not any(weights.values()):
        yield key, "all sources have weight 0.", f"{key}.{next(iter(weights))}=1.0"
