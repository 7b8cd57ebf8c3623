"""Rules on a run directory that exists: what may change when its run goes on, and from where."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from forge.config import changes
from forge.config.eval import METRICS
from forge.config.field import Section
from forge.config.problems import closest, did_you_mean, shown
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule
from forge.rundir import serialize, stored

OTHER = "run.dir=null for a fresh one, or give a run directory, or a new one"
MOST = 3  # steps that are named


@rule("run.dir", reads=("run.dir",))
def run_dir(config: Config, world: World) -> Iterator[Finding]:
    """run.dir must be a run, which goes on, or new, empty or absent."""
    path = config.run.dir
    if path is None:
        return
    place = Path(path)
    if os.path.exists(place) and not os.path.isdir(place):
        yield f"run.dir={path}", f"{path} is a file.", OTHER
    elif not stored.is_run(place) and not stored.is_new(place):
        what = f"{place} holds other files and is no run directory."
        yield f"run.dir={path}", what, OTHER


@rule("run.identity", reads=("run.dir", "run.allow_change"))
def identity(config: Config, world: World) -> Iterator[Finding]:
    """A run goes on with the model, data, seed, batch, optimizer and schedule it has, unless
    run.allow_change names what changes.
    """
    before = _stored(config)
    if isinstance(before, str):
        yield f"run.dir={config.run.dir}", before, "give another run.dir"
    if not isinstance(before, Config):
        return
    refused = [
        c
        for c in changes.changes(before, config)
        if not c.free and not changes.permitted(c.key, config.run.allow_change)
    ]
    if (
        "train.global_batch_size" in {c.key for c in refused}
        and before.train.seq_len == config.train.seq_len
    ):
        refused = [
            c for c in refused if c.key != "train.global_batch_tokens"
        ]  # the same, in tokens
    for change in refused:
        what = f"the run in {config.run.dir} has {change.key}={shown(change.before)}; here it is {shown(change.after)}."
        keep = (
            f"{change.key}={shown(change.before)}"
            if "." in change.key or change.key == "seed"
            else f"{change.key} as it was"
        )
        if (
            change.key == "train.global_batch_size"
            and before.parallel.degrees() != config.parallel.degrees()
        ):
            keep += " train.batch_size=-1"  # what it was divided into may not fit these ranks
        yield (
            f"{change.key}={shown(change.after)}",
            what,
            f"{keep}, run.allow_change=[{change.key}], or another run.dir",
        )


@rule("run.allow_change", reads=("run.allow_change",))
def allow_change(config: Config, world: World) -> Iterator[Finding]:
    """run.allow_change names keys or sections that exist."""
    known = list(_keys(config, ""))
    for name in config.run.allow_change:
        if name not in known:
            meant = did_you_mean(
                [f"run.allow_change=[{other}]" for other in closest(name, known, limit=1)]
            )
            yield (
                f"run.allow_change=[{name}]",
                f"there is no option or section '{name}'.",
                meant or "a key such as optimizer.lr, or model",
            )


@rule("checkpoint.init_from", reads=("checkpoint.init_from", "checkpoint.dir", "run.dir"))
def init_from(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.init_from must exist, until the run has a checkpoint of its own."""
    path = config.checkpoint.init_from
    if path is None or os.path.exists(path) or _is_behind(config, "init_from"):
        return
    if os.path.basename(path) != stored.BEST or not os.path.isdir(os.path.dirname(path)):
        fix = "give a step_N directory, a run directory that has checkpoints, RUN/best, or a .safetensors file"
        yield f"checkpoint.init_from={path}", f"there is nothing at {path}.", fix


@rule("checkpoint.resume_from", reads=("checkpoint.resume_from", "checkpoint.dir", "run.dir"))
def resume_from(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.resume_from is a step that the run in run.dir has saved, or an existing directory."""
    wanted = config.checkpoint.resume_from
    if wanted is None:
        return
    if not wanted.isdecimal():
        if not os.path.isdir(wanted) and not _is_behind(config, "resume_from"):
            fix = "a step of this run, a step_N directory, or a run directory that has checkpoints"
            yield f"checkpoint.resume_from={wanted}", f"there is no directory {wanted}.", fix
        return
    if config.run.dir is None:
        yield (
            f"checkpoint.resume_from={wanted}",
            "a step is one of the run in run.dir, which is not given.",
            "run.dir=..., or a path",
        )
        return
    folder = Path(config.run.dir) / config.checkpoint.dir
    if not os.path.isdir(folder / f"step_{int(wanted)}") and not _is_behind(config, "resume_from"):
        steps = sorted(
            int(p.name.removeprefix("step_"))
            for p in folder.glob("step_*")
            if p.name.removeprefix("step_").isdecimal()
        )
        fix = (
            " or ".join(f"checkpoint.resume_from={step}" for step in steps[-MOST:])
            or "checkpoint.resume_from=null: the run begins anew"
        )
        yield (
            f"checkpoint.resume_from={wanted}",
            f"{folder} has no checkpoint of step {wanted}.",
            fix,
        )


@rule("checkpoint.dir", reads=("checkpoint.dir",))
def checkpoint_dir(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.dir is a directory of its own, in the run directory or at an absolute path."""
    path = Path(config.checkpoint.dir)
    if ".." in path.parts or path in (Path(), Path("/")):
        what = f"'{path}' would mix checkpoints with other files."
        yield (
            f"checkpoint.dir={config.checkpoint.dir}",
            what,
            "checkpoint.dir=checkpoints, or an absolute path of its own",
        )


@rule("run.objective", reads=("run.objective", "eval.enabled"))
def objective(config: Config, world: World) -> Iterator[Finding]:
    """run.objective names a metric that the run has: an eval/ one needs eval.enabled=true."""
    name = config.run.objective or ""
    group, _, metric = name.partition("/")
    if group != "eval":
        return
    if metric not in METRICS:
        meant = [f"run.objective=eval/{other}" for other in closest(metric, METRICS)]
        fix = did_you_mean(meant) or f"one of {', '.join(f'eval/{other}' for other in METRICS)}"
        yield f"run.objective={name}", f"there is no metric {name}.", fix
    elif not config.eval.enabled:
        yield (
            f"run.objective={name}",
            f"{name} needs evaluation, and eval.enabled is false.",
            "eval.enabled=true",
        )


def _stored(config: Config) -> Config | str | None:
    """The config of the run that goes on, why it cannot be read, or None where there is none."""
    if config.run.dir is None or not stored.is_run(Path(config.run.dir)):
        return None
    base = stored.settled(Path(config.run.dir))
    if not base:
        return None  # nothing was trained yet, so there is nothing to keep to
    file = Path(config.run.dir) / stored.numbered(stored.CONFIG, base)
    try:
        return serialize.load(file, trust=config.run.trust)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ImportError,
        yaml.YAMLError,
    ) as error:
        return (
            f"{file} cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}."
        )


def _is_behind(config: Config, start: str) -> bool:
    """Whether the run in run.dir was begun with this option of `checkpoint`, and has saved since:
    then nobody reads what it names.
    """
    before = _stored(config)
    if not isinstance(before, Config) or getattr(before.checkpoint, start) != getattr(
        config.checkpoint, start
    ):
        return False
    return any(Path(str(config.run.dir), config.checkpoint.dir).glob("step_[0-9]*"))


def _keys(section: Section, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(section):
        yield f"{prefix}{field.name}"
        value = getattr(section, field.name)
        if isinstance(value, Section):
            yield from _keys(value, f"{prefix}{field.name}.")
