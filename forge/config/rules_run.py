"""Rules on the device, the data and the components that are built."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator
from typing import Any

from forge.config import schemas
from forge.config.data import Text
from forge.config.field import Section
from forge.config.frozen import unkeepable
from forge.config.root import Config
from forge.config.rule import Finding, rule
from forge.config.target import target_fault
from forge.config.world import World


@rule("data.path", reads=("data.path",))
def data_path(config: Config, world: World) -> Iterator[Finding]:
    """data=text needs a path that exists, or a glob that matches."""
    section = config.data
    if not isinstance(section, Text):
        return
    if not section.path:
        yield "data.path", "data=text needs the path of your text.", "data.path=my.txt, a directory, or 'data.path=corpus/**/*.jsonl'"
    elif not os.path.exists(section.path) and next(glob.iglob(section.path, recursive=True), None) is None:
        what = f"there is no file or directory {section.path}, and as a glob it matches nothing."
        yield f"data.path={section.path}", what, "check the path; it is relative to where you are"


@rule("run.device", reads=("run.device",))
def device(config: Config, world: World) -> Iterator[Finding]:
    """run.device=cuda needs a GPU and a CUDA build of torch."""
    if config.run.device == "cuda" and world.devices.gpus == 0:
        yield "run.device=cuda", f"no GPU can be used here ({world.devices.source}).", "run.device=cpu"


@rule("run.inline", reads=("run.inline", "run.num_processes"))
def inline(config: Config, world: World) -> Iterator[Finding]:
    """run.inline runs one rank in this process; more need processes of their own."""
    if config.run.inline and world.size > 1:
        yield "run.inline=true", f"{world.size} ranks cannot share one process.", "run.inline=false"


@rule("precision.fp16_cpu", reads=("precision.mixed_precision", "run.device"), warning=True)
def slow_on_cpu(config: Config, world: World) -> Iterator[Finding]:
    """16-bit matrix products are slow on most CPUs."""
    chosen = config.precision.mixed_precision
    if config.run.device == "cpu" and chosen in ("bf16", "fp16"):
        what = f"{chosen} matrix products on a CPU without hardware for them are many times slower than fp32."
        yield f"precision.mixed_precision={chosen}", what, "precision=auto"


@rule("target", reads=())
def target(config: Config, world: World) -> Iterator[Finding]:
    """Every _target_ must name an existing class or function under forge., torch.optim., torch.nn. or a trusted prefix."""
    sections = [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]
    found = [(name, vars(value)["_target_"]) for name, value in sections if isinstance(value, Section) and "_target_" in vars(value)]
    found += [(name, entry["_target_"]) for name, entry in _entries(config) if isinstance(entry, dict) and "_target_" in entry]
    for name, path in found:
        fault = target_fault(path, config.run.trust, f"{name}._target_")
        if fault:
            yield f"{name}._target_={path}", *fault


@rule("entries", reads=("callbacks", "trackers"))
def entries(config: Config, world: World) -> Iterator[Finding]:
    """Every entry of callbacks and trackers has a _target_, and values that a file can keep."""
    for key, entry in _entries(config):
        if not isinstance(entry, dict):
            yield f"{key}={entry}", "an entry has a _target_ and keywords; this is a value.", f"~{key}, or {key}={{_target_:mypkg.Mine}}"
        elif "_target_" not in entry:
            yield key, "it has no _target_, the class that is built for it.", f"+{key}._target_=mypkg.Mine"
        elif fault := unkeepable(entry, key):
            yield key, f"{fault}, which no file can keep.", f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"


def _entries(config: Config) -> Iterator[tuple[str, Any]]:
    """(config path, entry) of every free dict."""
    for group in schemas.free_dicts():
        for name, entry in getattr(config, group).items():
            yield f"{group}.{name}", entry
