"""Folders of PEFT made of the adapters of a run, and read into those of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from forge.config.adapter import LoRA
from forge.config.hf import folder as folders
from forge.config.hf.peft import CONFIG, WEIGHTS
from forge.config.hf.table import Row
from forge.config.model import Decoder, Model
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer
from forge.hf import peft
from forge.masters import exact_state, round_masters
from forge.owned import copy_owned
from forge.rundir.checkpoints import TOKENIZER, CheckpointError, Saved
from forge.training.hugging_face import choose_family, export_dtype
from forge.training.merging import Merged


def export_peft(
    path: Path, config: Config, out: Path, *, family: str | None, dtype: str | None
) -> str:
    """Write the adapters of a checkpoint as PEFT does; returns what was written, in words.

    out: a new folder. Raises ValueError for a run without adapters, and for what PEFT lacks.
    """
    section = config.model
    assert isinstance(section, Decoder)
    adapter = config.adapter
    if not isinstance(adapter, LoRA):
        what = "this run has no adapters, and --format peft writes nothing else"
        raise ValueError(f"{what}; --format hf writes its weights")
    chosen = choose_family(section, family)
    rows = chosen.rows(section)
    names = {row.ours.name for row in rows}
    weights = Merged(path, config)
    whole = [name for name in weights.stored if name in names]
    number = export_dtype(config, path, dtype)
    found = dict(peft.tensors(rows, adapter, weights.own, whole))
    base = config.checkpoint.init_from
    content = peft.content(rows, adapter, whole, base)
    out.mkdir(parents=True)
    ready = {name: values.to(number).contiguous() for name, values in found.items()}
    save_file(ready, out / WEIGHTS, metadata={"format": "pt"})
    (out / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    Tokenizer.load(path / TOKENIZER).save(out)
    word = str(number).removeprefix("torch.")
    what = f"adapters of step {Saved(path).step} in {word}"
    return f"{what}, {len(found)} tensors for {chosen.architecture}"


def load_adapters(place: Path, model: nn.Module, section: Model, adapter: LoRA) -> None:
    """Fill what an adapter adds, or what this rank has of it, from a folder of PEFT, in place.

    section: that the model was built with. Raises CheckpointError for what does not fit.
    """
    assert isinstance(section, Decoder), section
    rows, tensors = _rows_of(place, section), exact_state(model)
    try:
        with safe_open(place / WEIGHTS, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for one in peft.places(rows, adapter):
            for name, values in peft.read_place(one, adapter, stored).items():
                if name in tensors:
                    _check(place, name, tensors[name], values)
                    copy_owned(tensors[name], values)
        round_masters(model)
    except KeyError as error:
        what = f"{place / WEIGHTS} has no tensor {error.args[0]}"
        raise CheckpointError(f"{what}, which adapter.target_modules names here") from None


def _check(place: Path, name: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.shape != theirs.shape:
        what = f"{name} is {tuple(theirs.shape)} there and {tuple(ours.shape)} here"
        raise CheckpointError(f"{place} does not fit this model: {what}. Choose the same adapter")


def _rows_of(place: Path, section: Decoder) -> Sequence[Row]:
    """The rows of the family in whose names a folder of PEFT is."""
    with safe_open(place / WEIGHTS, framework="pt") as file:
        names = {name.removeprefix(peft.PREFIX) for name in file.keys()}  # noqa: SIM118
    for family in folders.all_families():
        if not family.unsaid(section):
            rows = family.rows(section)
            modules = {row.theirs.name.rpartition(".")[0] for row in rows}
            if all(any(name.startswith(f"{one}.") for one in modules) for name in names):
                return rows
    what = f"{place}: its names, such as {min(names)}, are of no family that can say this model"
    raise CheckpointError(what)
