"""Rules on the device, the data, the login to W&B and the components built by `_target_`."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator
from typing import Any

from forge.config import schemas
from forge.config.data.chats import Formatted
from forge.config.data.mixture import Mix
from forge.config.data.text import Data, Dataset, Files, Shards, Synthetic
from forge.config.field import Section, default_of
from forge.config.launch import Launch, Slurm
from forge.config.metrics import Metrics
from forge.config.model.decoder import Decoder
from forge.config.places import address_fault, is_remote
from forge.config.problems import literal, shown, typed_override
from forge.config.root import Config
from forge.config.rule import Findings, rule, walk
from forge.config.run import Run, elastic_bounds
from forge.config.targets.own import Own
from forge.config.targets.target import group_of_path, inner_faults, target_fault
from forge.config.tokenizers.tokenizer import BPE
from forge.planning.world import World, ranks_of
from forge.resolve.rules.steps.remote import absence_of


@rule("run.device")
def device_present(run: Run, world: World) -> Findings:
    """run.device=cuda needs a GPU and a CUDA build of torch, and run.device=mps Apple silicon."""
    if run.device == "cuda" and world.devices.gpus == 0:
        hint = "run.device=cpu; plan.device=h100 with forge.check plans for GPUs elsewhere"
        yield "run.device", f"no GPU can be used here ({world.devices.source}).", hint
    if run.device == "mps" and not world.devices.apple:
        where = "the machines of launch=slurm are not" if world.remote else "this machine is not"
        message = f"mps is the GPU of Apple silicon under macOS, which {where}."
        yield "run.device", message, "run.device=auto"


@rule("run.inline", "run.inline", "run.num_processes")
def inline(run: Run, world: World) -> Findings:
    """run.inline runs one rank in this process; more need processes of their own."""
    if run.inline and world.size > 1:
        yield "run.inline", "run.inline=false"


@rule("run.elastic", "run.elastic", "run.max_restarts", "run.num_processes", "run.dir")
def elastic(run: Run, world: World) -> Findings:
    """run.elastic=LEAST:MOST holds the number of ranks, and takes run.max_restarts; under torchrun
    it takes run.dir.
    """
    if run.elastic is None:
        return
    try:
        least, most = elastic_bounds(run.elastic)
    except ValueError as error:
        yield "run.elastic", f"it must be {error}.", f"run.elastic=1:{world.size}"
        return
    if not 1 <= least <= world.size <= most:
        message = f"the run starts with {ranks_of(world.size)} (from {world.source})."
        yield "run.elastic", message, f"run.elastic=1:{world.size}"
    if world.elsewhere:
        if not (world.remote or run.dir):
            message = "a restart by another launcher continues in a directory that it is told."
            yield "run.dir", message, "run.dir=runs/mine"
    elif not run.max_restarts:
        yield "run.max_restarts", "nothing is started again without it.", "run.max_restarts=10"


@rule("data.path")
def data_path(data: Files) -> Findings:
    """data.path must be a path that exists and may be read, or a glob that matches."""
    if not data.path:
        yield "data.path", "data.path=my.txt, a directory, or 'data.path=corpus/**/*.jsonl'"
    elif fault := (absence_of if is_remote(data.path) else path_fault)(data.path):
        yield "data.path", *fault


@rule("data.hf_dataset_name", "data.hf_dataset_name", "data.path")
def one_dataset(data: Dataset) -> Findings:
    """One dataset is read: data.hf_dataset_name of the hub, or data.path on this machine."""
    if bool(data.path) == bool(data.hf_dataset_name):
        key = "data.path" if data.path else "data.hf_dataset_name"
        message = (
            "there are two, of the hub and on this machine." if data.path else "there is none."
        )
        hint = "data.hf_dataset_name=my/dataset alone, or data.path=my/dataset alone"
        yield key, f"one dataset is read, and {message}", hint
    elif data.path and (fault := path_fault(data.path)):
        yield "data.path", *fault


@rule("data.file_pattern", "data.path", "data.file_pattern")
def file_pattern(data: Shards) -> Findings:
    """The directory data.path has token shards: files that data.file_pattern matches."""
    if os.path.isdir(data.path) and not data.files():
        names = [name for name in os.listdir(data.path) if not name.startswith(".")]
        held = f"it has {', '.join(sorted(names)[:6])}" if names else "it is empty"
        message = f"{data.path} has no {data.file_pattern or '.npy or .bin'} files; {held}."
        hint = "another directory, or data.file_pattern=... with what they are called"
        yield "data.path", message, hint


@rule("tokenizer.trained")
def tokenizer_is_trained(data: Data, tokenizer: BPE) -> Findings:
    """tokenizer=bpe is trained on text before a run: tokens, but of data=synthetic, have none, and
    a stream comes later.
    """
    if (data.tokenized and not isinstance(data, Synthetic)) or data.streamed:
        tokenizer_source = (
            "the one of these tokens" if data.tokenized else "one that is trained already"
        )
        hint = f"{tokenizer_source}, tokenizer=file tokenizer.path=my/tokenizer.json; "
        yield "tokenizer", hint + "tokenizer=bytes"


def path_fault(path: str) -> tuple[str, str] | None:
    """Find the fault of a path or glob of texts, and advice; None where texts can be read."""
    if os.path.exists(path):
        hint = "permission to read it (chmod u+r), or another path"
        return None if os.access(path, os.R_OK) else (f"you may not read {path}.", hint)
    if os.path.islink(path):
        message = f"{path} is a link to {os.readlink(path)}, which is not there."
        return message, "put that back, or give another path"
    if any(glob.iglob(path, recursive=True)):
        return None
    message = f"there is no file or directory {path}, and as a glob it matches nothing."
    return message, "check the path; it is relative to where you are"


@rule("metrics.wandb_login", "metrics.enable_wandb", "metrics.wandb_mode")
def wandb_login(metrics: Metrics, launch: Launch) -> Findings:
    """metrics.enable_wandb=true with metrics.wandb_mode=online needs a login of W&B."""
    if not metrics.enable_wandb or (isinstance(launch, Slurm) and launch.setup):
        return  # launch.setup may log in inside the job
    from forge.config.wandb_login import login, sends  # imports parsers unused elsewhere

    account = login()
    if sends(metrics) and not account.source:
        message = f"W&B has no login to {account.host} here, so nothing would be logged there."
        yield "metrics.enable_wandb", message, "type wandb login, or metrics.wandb_mode=offline"


@rule("no_effect", warning=True)
def no_effect(config: Config, world: World) -> Findings:
    """An option should have an effect, given the values of the others."""
    for key, section, field in walk(config):
        acts = field.metadata.get("acts_when") or type(section).acts_when
        why = acts.otherwise if acts and not acts.holds(config, world.size) else ""
        if isinstance(section, Decoder) and field.name in section.mixer.unread:
            why = f"on the mixer {section.mixer.schema_name}"
        if not why:
            continue
        value, default = getattr(section, field.name), default_of(field)
        value = list(value) if isinstance(value, tuple) else value
        if value not in (default, field.metadata.get("idle")):
            hint = typed_override(key, literal(default) if "," in str(default) else shown(default))
            yield key, f"{key} has no effect {why}.", hint


@rule("target")
def target(config: Config) -> Findings:
    """Every _target_ must name what forge or torch has for its place, or what is under a trusted
    prefix.
    """
    trust = config.run.trust
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    section_values = {
        name: vars(value) for name, value in sections.items() if isinstance(value, Section)
    }
    entries = {name: entry for name, entry in _entries(config) if isinstance(entry, dict)}
    for name, values in (section_values | entries).items():
        path = values.get("_target_")
        if "_target_" in values and (
            fault := target_fault(path, group_of_path(name), trust, key=f"{name}._target_")
        ):
            yield f"{name}._target_={path}", *fault
    for name, entry in _read(config):
        place = group_of_path(name) if name.startswith(("eval.tasks.", "rewards.")) else name
        if fault := target_fault(entry["_target_"], place, trust, key=f"{name}._target_"):
            yield f"{name}._target_={entry['_target_']}", *fault
        entries[name] = entry
    for name, section in sections.items():
        if isinstance(section, Own):
            entries[name] = vars(section)
    if isinstance(config.data, Formatted):
        entries["data"] = {"formatting_func": config.data.formatting_func}
    for name, entry in entries.items():
        keywords = {key: value for key, value in entry.items() if key != "_target_"}
        yield from inner_faults(keywords, name, trust)


@rule("entries", "callbacks", "techniques", "trackers")
def entries(config: Config) -> Findings:
    """Every entry of callbacks, techniques and trackers has a _target_, values that a file can
    keep, and files of this machine.
    """
    for key, entry in _entries(config):
        if not isinstance(entry, dict):
            message = "an entry has a _target_ and keywords; this is a value."
            yield f"{key}={entry}", message, f"~{key}, or {key}={{_target_:mypkg.Mine}}"
        elif "_target_" not in entry:
            message = "it has no _target_, the class that is built for it."
            yield key, message, f"+{key}._target_=mypkg.Mine"
        elif fault := _address_of(key, entry):
            yield fault
        elif other := unstorable(entry, key):
            hint = f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"
            yield key, f"{other}, which no file can keep.", hint


def _address_of(key: str, entry: dict[str, Any]) -> tuple[str, str, str] | None:
    """The first file of one of forge's own trackers with an address as its path."""
    is_forge = str(entry["_target_"]).startswith("forge.trackers.")
    for name in ("file_name", "textfile") if is_forge else ():
        value = entry.get(name)
        if isinstance(value, str) and (fault := address_fault(f"{key}.{name}=", value)):
            return f"{key}.{name}={value}", *fault
    return None


def _read(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (config path, entry) of each text read by a user's class or function."""
    sources = config.data.sources if isinstance(config.data, Mix) else {}
    dicts = {"data.sources": sources, "eval.sets": config.eval.sets}
    dicts["data"] = {"validation": config.data.validation}
    dicts |= {"eval.tasks": config.eval.tasks, "rewards": config.rewards}
    for above, group_entries in dicts.items():
        for name, entry in group_entries.items():
            if isinstance(entry, dict) and "_target_" in entry:
                yield f"{above}.{name}", entry
    if "_target_" in config.environment:
        yield "environment", config.environment


def _entries(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield (config path, entry) of every free dict."""
    for group in schemas.free_dicts():
        for name, entry in getattr(config, group).items():
            yield f"{group}.{name}", entry


def unstorable(value: Any, key: str) -> str:
    """Describe the first value of a type outside config files; '' where none has one."""
    inner: dict[str, Any] = {}
    if isinstance(value, dict):
        inner = {f"{key}.{name}": entry for name, entry in value.items()}
    elif isinstance(value, list | tuple):
        inner = {f"{key}[{index}]": entry for index, entry in enumerate(value)}
    elif value is not None and not isinstance(value, str | int | float):
        return f"{key} is a {type(value).__name__}"
    return next(filter(None, (unstorable(entry, name) for name, entry in inner.items())), "")
