"""Rules on folders of adapters written by PEFT."""

from __future__ import annotations

from dataclasses import replace

from forge.config.adapters.adapter import Adapter, LoRA
from forge.config.checkpoint import Checkpoint
from forge.config.model.layer import Model
from forge.config.problems import shown
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.families import peft
from forge.families.shards import FolderError
from forge.resolve.rules.run_directory import has_saved_since

INIT_FROM = "adapter.init_from"


@rule(INIT_FROM, INIT_FROM, "adapter", "checkpoint.init_from", "run.dir", "checkpoint.dir")
def init_from_peft(config: Config, adapter: LoRA) -> Findings:
    """adapter.init_from is a folder of PEFT, whose adapters have the options of these."""
    folder = adapter.init_from
    if folder is None or has_saved_since(config, "init_from"):
        return
    if not peft.is_peft(folder):
        message = f"{folder} has no {peft.CONFIG}."
        yield (
            INIT_FROM,
            message,
            f"{INIT_FROM}=null, or a folder as save_pretrained of PEFT writes it",
        )
        return
    try:
        options = peft.adapter_options(peft.read_adapter_config(folder))
    except FolderError as error:
        yield INIT_FROM, error.what, error.fix
        return
    for name, value in options.items():
        if (ours := getattr(adapter, name)) != value:
            if name == "ranks" and _same_ranks(config.model, adapter, value):
                continue
            key, folder_value = f"adapter.{name}", _said(value)
            message = f"{folder} has adapters of {name}={folder_value}, and this is {_said(ours)}."
            yield key, message, _override(name, value)


@rule("checkpoint.adapters", "checkpoint.init_from", "adapter", "run.dir", "checkpoint.dir")
def adapters(config: Config, adapter: Adapter, checkpoint: Checkpoint) -> Findings:
    """A folder of adapters alone is beside weights that are somewhere else, for a run with
    adapters.
    """
    folder = checkpoint.init_from
    if folder is None or not peft.is_peft(folder) or has_saved_since(config, "init_from"):
        return
    if not adapter.from_peft:
        yield (
            "adapter",
            f"{folder} has adapters alone.",
            " ".join(["adapter=lora", *_typed(folder)]),
        )
        return
    message = f"{folder} has adapters alone, whose base is not on this machine."
    yield (
        "checkpoint.init_from",
        message,
        f"checkpoint.init_from=null {INIT_FROM}={folder}, or its base for null",
    )


def _same_ranks(model: Model, adapter: LoRA, ranks: dict[str, int]) -> bool:
    """Whether `ranks`, under other words, give each matrix its present rank."""
    renamed = replace(adapter, ranks=ranks)
    return all(adapter.rank_of(tensor) == renamed.rank_of(tensor) for tensor in model.tensors())


def _typed(place: str) -> list[str]:
    """Overrides that give an adapter the options of a folder."""
    try:
        options = peft.adapter_options(peft.read_adapter_config(place))
    except FolderError:
        return []  # the rule above reports the fault
    return [_override(name, value) for name, value in options.items() if value]


def _override(name: str, value: object) -> str:
    typed = f"adapter.{name}={_said(value)}"
    return f"'{typed}'" if isinstance(value, dict) else typed


def _said(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{number}" for key, number in value.items()) + "}"
    return shown(value)
