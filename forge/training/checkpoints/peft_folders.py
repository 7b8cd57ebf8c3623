"""Folders of PEFT made of the adapters of a run, and read into those of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from forge.config.adapters.adapter import (
    PISSA,
    RANDOM,
    TAKEN_A,
    TAKEN_B,
    A,
    Adapter,
    B,
    LoRA,
    name_of,
)
from forge.config.adapters.ia3 import IA3
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import BIAS, EMBEDDING, HEAD
from forge.config.root import Config
from forge.config.tokenizers.tokenizer_stated import GENERATION
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families import folder as folders
from forge.families.peft import CONFIG, WEIGHTS
from forge.families.peft import read as read_config
from forge.families.table import Row
from forge.hf import ia3, peft
from forge.hf.card import adapter_card, beside_bits
from forge.rundir.checkpoints import TOKENIZER, CheckpointError, Saved
from forge.tensors.local import copy_local, local, owned, select
from forge.tensors.masters import exact_state, round_masters
from forge.training.checkpoints.hf_folders import choose_family, export_dtype
from forge.training.checkpoints.merging import Merged


def export_peft(
    path: Path, config: Config, out: Path, *, family: str | None, dtype: str | None
) -> str:
    """Write the adapters of a checkpoint as PEFT does; returns what was written, in words.

    out: a new folder. Raises ValueError for a run without adapters, and for what PEFT lacks.
    """
    section = config.decoder
    assert section is not None
    adapter = config.adapter
    if not isinstance(adapter, LoRA | IA3):
        what = "this run has no adapters, and --format peft writes nothing else"
        raise ValueError(f"{what}; --format hf writes its weights")
    chosen = choose_family(section, family)
    rows = chosen.rows(section)
    names = {row.ours.name for row in rows}
    weights = Merged(path, config)
    whole = [name for name in weights.stored if name in names]
    number = export_dtype(config, path, dtype)
    read, base = weights.own, config.checkpoint.init_from
    if isinstance(adapter, IA3):
        if section.new_rows[1]:
            what = "a folder of IA3 has no place for the rows of added tokens"
            raise ValueError(f"{what}; --format hf --merge writes all weights")
        found = dict(ia3.tensors(rows, adapter, read))
        content = ia3.content(rows, adapter, base)
    else:
        if adapter.init == PISSA:
            adapter, read = _as_difference(rows, adapter, read)
        found = dict(peft.tensors(rows, adapter, read, weights.beneath, whole))
        content = peft.content(rows, adapter, whole, base)
    out.mkdir(parents=True)
    ready = {name: values.to(number).contiguous() for name, values in found.items()}
    save_file(ready, out / WEIGHTS, metadata={"format": "pt"})
    (out / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(path / TOKENIZER)
    tokenizer.stated.pop(GENERATION, None)  # which the folder of the base says
    tokenizer.save(out)
    word = str(number).removeprefix("torch.")
    what = f"adapters of step {Saved(path).step} in {word}"
    (out / "README.md").write_text(adapter_card(Saved(path), config, chosen, word), "utf-8")
    beside = f"; {beside_bits(adapter)}" if adapter.packed_format else ""
    return f"{what}, {len(found)} tensors for {chosen.architecture}{beside}"


def _as_difference(rows: Sequence[Row], adapter: LoRA, read: peft.Read) -> tuple[LoRA, peft.Read]:
    """An adapter of twice the rank beside the weights as they were, B A less what was taken out of
    these; and what reads its tensors.
    """
    scales = {row.ours.name: adapter.scale(max(1, adapter.rank_of(row.ours))) for row in rows}
    own = {name_of(row.ours, which): row.ours for row in rows for which in (A, B)}

    def read_both(name: str) -> Tensor:
        if name not in own:
            return read(name)
        one = own[name]
        if name == name_of(one, A):
            return torch.cat([read(name), read(name_of(one, TAKEN_A))], dim=-2)
        taken = read(name_of(one, TAKEN_B)) / scales[one.name]
        return torch.cat([read(name), -taken], dim=-1)

    twice = {
        "init": RANDOM,
        "rank": 2 * adapter.rank,
        "ranks": {word: 2 * rank for word, rank in adapter.ranks.items()},
        "alpha": adapter.alpha * (2**0.5 if adapter.rank_stabilized else 2),
    }
    return replace(adapter, **twice), read_both


def load_adapters(place: Path, model: nn.Module, section: Model, adapter: Adapter) -> None:
    """Fill what an adapter adds, or what this rank has of it, from a folder of PEFT, in place.

    section: that the model was built with. Raises CheckpointError for what does not fit.
    """
    assert isinstance(section, Decoder), section
    assert isinstance(adapter, LoRA), adapter
    rows, tensors = _rows_of(place, section), exact_state(model)
    try:
        with safe_open(place / WEIGHTS, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        copied = read_config(place).get("modules_to_save") or []
        found = peft.read_whole(rows, adapter, stored, copied)
        for one in peft.places(rows, adapter):
            found |= peft.read_place(one, adapter, stored)
        _refuse_others(place, rows, adapter, stored, tensors)
        for name, values in found.items():
            if name in tensors:
                _check(place, name, tensors[name], values)
                copy_local(tensors[name], values)
        round_masters(model)
    except KeyError as error:
        what = f"{place / WEIGHTS} has no tensor {error.args[0]}"
        keys = "adapter.target_modules, adapter.bias or adapter.modules_to_save"
        raise CheckpointError(f"{what}, which {keys} names here") from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{place}: {error}") from None


def _refuse_others(
    place: Path,
    rows: Sequence[Row],
    adapter: LoRA,
    stored: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    """Raise CheckpointError where a folder has a tensor that would be left out, but for copies of
    weights of the base, which PEFT adds to those of an embedding.
    """
    for name, row in peft.unread(rows, adapter, stored).items():
        ours = None if row is None else tensors.get(row.ours.name)
        if row is not None and row.index is None and not row.theirs.stacked:
            copied = row.ours.role in (EMBEDDING, HEAD) or ".base_layer." in name
            if ours is None and copied:
                continue  # of another stage of a pipeline
            transposed = row.theirs.transposed
            if ours is not None and _is_copy(ours, stored[name], transposed=transposed):
                continue
            fix = f"adapter.modules_to_save=[{row.ours.name}]"
            if row.ours.role == BIAS:
                fix = f"adapter.bias=lora or all, or {fix}"
        else:
            fix = "adapter.target_modules of the folder's target_modules"
            fix += ", or merge the adapters into its base with PEFT"
        what = f"{place / WEIGHTS} has {name}, which this run's adapter does not train"
        raise CheckpointError(f"{what} and would leave out. Choose {fix}")


def _is_copy(ours: Tensor, theirs: Tensor, *, transposed: bool) -> bool:
    """Whether a stored tensor has the values of a parameter, in the format of either."""
    values = theirs.T if transposed and theirs.dim() > 1 else theirs
    if ours.shape != values.shape:
        return False
    mine = local(ours).detach()
    same = select(values, owned(ours)).to(mine.device)
    return torch.equal(mine.to(same.dtype), same) or torch.equal(mine, same.to(mine.dtype))


def _check(place: Path, name: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.shape != theirs.shape:
        what = f"{name} is {tuple(theirs.shape)} there and {tuple(ours.shape)} here"
        raise CheckpointError(f"{place} does not fit this model: {what}. Choose the same adapter")


def _rows_of(place: Path, section: Decoder) -> Sequence[Row]:
    """The rows of the family in whose names a folder of PEFT is."""
    with safe_open(place / WEIGHTS, framework="pt") as file:
        names = {name.removeprefix(peft.PREFIX) for name in file.keys()}  # noqa: SIM118
    unknown = names
    for family in folders.all_families():
        if not family.unsaid(section):
            rows = family.rows(section)
            modules = {row.theirs.name.rpartition(".")[0] for row in rows}
            left = {n for n in names if not any(n.startswith(f"{one}.") for one in modules)}
            if not left:
                return rows
            unknown = min(unknown, left, key=len)
    what = f"{place} has {min(unknown)}, which is beside no matrix of this model"
    raise CheckpointError(f"{what}. Choose the base that its adapters are of")
