"""Rules on the device, the data, the trackers and the components that are built."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator
from typing import Any

from forge.config import schemas
from forge.config.data import Text
from forge.config.field import Section
from forge.config.launch import Slurm
from forge.config.root import Config
from forge.config.target import inner_faults, place_of, target_fault
from forge.plan.world import World
from forge.resolve.rule import Finding, rule


@rule("data.path", reads=("data.path",))
def data_path(config: Config, world: World) -> Iterator[Finding]:
    """data=text needs a path that exists and may be read, or a glob that matches."""
    section = config.data
    if not isinstance(section, Text):
        return
    if not section.path:
        yield (
            "data.path",
            "data=text needs the path of your text.",
            "data.path=my.txt, a directory, or 'data.path=corpus/**/*.jsonl'",
        )
    elif (
        not os.path.exists(section.path)
        and next(glob.iglob(section.path, recursive=True), None) is None
    ):
        what = f"there is no file or directory {section.path}, and as a glob it matches nothing."
        yield f"data.path={section.path}", what, "check the path; it is relative to where you are"
    elif os.path.exists(section.path) and not os.access(section.path, os.R_OK):
        yield (
            f"data.path={section.path}",
            f"you may not read {section.path}.",
            "permission to read it (chmod u+r), or another path",
        )


@rule("run.device", reads=("run.device",))
def device(config: Config, world: World) -> Iterator[Finding]:
    """run.device=cuda needs a GPU and a CUDA build of torch."""
    if config.run.device == "cuda" and world.devices.gpus == 0:
        yield (
            "run.device=cuda",
            f"no GPU can be used here ({world.devices.source}).",
            "run.device=cpu",
        )


@rule("run.inline", reads=("run.inline", "run.num_processes"))
def inline(config: Config, world: World) -> Iterator[Finding]:
    """run.inline runs one rank in this process; more need processes of their own."""
    if config.run.inline and world.size > 1:
        yield "run.inline=true", f"{world.size} ranks cannot share one process.", "run.inline=false"


@rule("precision.residual_dtype", reads=("precision.mixed_precision", "precision.residual_dtype"))
def residual_dtype(config: Config, world: World) -> Iterator[Finding]:
    """Hidden states are kept in fp32 or in the format of precision.mixed_precision."""
    residual, mixed = config.precision.residual_dtype, config.precision.mixed_precision
    if residual not in ("fp32", mixed):
        formats = "fp32" if mixed == "fp32" else f"fp32 or in {mixed}"
        what = f"with precision.mixed_precision={mixed} hidden states are kept in {formats}."
        yield f"precision.residual_dtype={residual}", what, "precision.residual_dtype=auto"


@rule("precision.fp16_cpu", reads=("precision.mixed_precision", "run.device"), warning=True)
def slow_on_cpu(config: Config, world: World) -> Iterator[Finding]:
    """16-bit matrix products are slow on most CPUs."""
    chosen = config.precision.mixed_precision
    if config.run.device == "cpu" and chosen in ("bf16", "fp16"):
        what = f"{chosen} matrix products on a CPU without hardware for them are many times slower than fp32."
        yield f"precision.mixed_precision={chosen}", what, "precision=auto"


@rule("metrics.wandb_login", reads=("metrics.enable_wandb", "metrics.wandb_mode"))
def wandb_login(config: Config, world: World) -> Iterator[Finding]:
    """metrics.enable_wandb=true with metrics.wandb_mode=online needs a login of W&B."""
    if not config.metrics.enable_wandb or (
        isinstance(config.launch, Slurm) and config.launch.setup
    ):
        return  # what is set up in a job may log in there
    from forge.config.wandb_login import (
        login,
        sends,
    )  # which reads files in formats that nothing else here does

    found = login()
    if sends(config.metrics) and not found.source:
        fault = f" ({found.fault})" if found.fault else ""
        what = f"W&B has no login to {found.host} here{fault}, so nothing would be logged there."
        yield "metrics.enable_wandb=true", what, "type wandb login, or metrics.wandb_mode=offline"


@rule("target", reads=())
def target(config: Config, world: World) -> Iterator[Finding]:
    """Every _target_ must name what forge or torch has for its place, or what is under a trusted
    prefix.
    """
    sections = [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    found = [
        (name, vars(value)["_target_"])
        for name, value in sections
        if isinstance(value, Section) and "_target_" in vars(value)
    ]
    entries = [(name, entry) for name, entry in _entries(config) if isinstance(entry, dict)]
    found += [(name, entry["_target_"]) for name, entry in entries if "_target_" in entry]
    for name, path in found:
        fault = target_fault(path, place_of(name), config.run.trust, key=f"{name}._target_")
        if fault:
            yield f"{name}._target_={path}", *fault
    for name, entry in entries:
        yield from inner_faults(
            {key: value for key, value in entry.items() if key != "_target_"},
            name,
            config.run.trust,
        )


@rule("entries", reads=("callbacks", "trackers"))
def entries(config: Config, world: World) -> Iterator[Finding]:
    """Every entry of callbacks and trackers has a _target_, and values that a file can keep."""
    for key, entry in _entries(config):
        if not isinstance(entry, dict):
            yield (
                f"{key}={entry}",
                "an entry has a _target_ and keywords; this is a value.",
                f"~{key}, or {key}={{_target_:mypkg.Mine}}",
            )
        elif "_target_" not in entry:
            yield (
                key,
                "it has no _target_, the class that is built for it.",
                f"+{key}._target_=mypkg.Mine",
            )
        elif fault := unkeepable(entry, key):
            yield (
                key,
                f"{fault}, which no file can keep.",
                f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them",
            )


def _entries(config: Config) -> Iterator[tuple[str, Any]]:
    """(config path, entry) of every free dict."""
    for group in schemas.free_dicts():
        for name, entry in getattr(config, group).items():
            yield f"{group}.{name}", entry


def unkeepable(value: Any, key: str) -> str | None:
    """What a config file cannot keep, in words, or None: it keeps texts, numbers, booleans, null,
    lists and dicts.
    """
    if value is None or isinstance(value, str | int | float):
        return None
    inner = (
        {f"{key}.{name}": entry for name, entry in value.items()}
        if isinstance(value, dict)
        else {f"{key}[{index}]": entry for index, entry in enumerate(value)}
        if isinstance(value, list | tuple)
        else None
    )
    if inner is None:
        return f"{key} is a {type(value).__name__}"
    return next(filter(None, (unkeepable(entry, name) for name, entry in inner.items())), None)
