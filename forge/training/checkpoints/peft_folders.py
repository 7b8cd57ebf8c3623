"""Folders of PEFT made of the adapters of a run, and read into those of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    adapter_name,
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
from forge.families.peft import read_adapter_config as read_config
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
    """Write the adapters of a checkpoint as a PEFT folder; returns a summary in words.

    out: a new folder. Raises ValueError for a run without adapters, and for features absent from
    PEFT.
    """
    section = config.decoder
    assert section is not None
    adapter = config.adapter
    if not isinstance(adapter, LoRA | IA3):
        message = "this run has no adapters, and --format peft writes nothing else"
        raise ValueError(f"{message}; --format hf writes its weights")
    chosen = choose_family(section, family)
    rows = chosen.rows(section)
    names = {row.ours.name for row in rows}
    weights = Merged(path, config)
    full_names = [name for name in weights.stored if name in names]
    number = export_dtype(config, path, dtype)
    read, base = weights.own, config.checkpoint.init_from
    if isinstance(adapter, IA3):
        if section.new_rows[1]:
            message = "a folder of IA3 has no place for the rows of added tokens"
            raise ValueError(f"{message}; --format hf --merge writes all weights")
        tensors = dict(ia3.tensors(rows, adapter, read))
        content = ia3.adapter_config(rows, adapter, base)
    else:
        if adapter.init == PISSA:
            adapter, read = _as_difference(rows, adapter, read)
        tensors = dict(peft.tensors(rows, adapter, read, weights.beneath, full_names))
        content = peft.adapter_config(rows, adapter, full_names, base)
    out.mkdir(parents=True)
    ready = {name: values.to(number).contiguous() for name, values in tensors.items()}
    _write(out, ready, content, Tokenizer.load(path / TOKENIZER))
    word = str(number).removeprefix("torch.")
    message = f"adapters of step {Saved(path).step} in {word}"
    (out / "README.md").write_text(adapter_card(Saved(path), config, chosen, word), "utf-8")
    beside = f"; {beside_bits(adapter)}" if adapter.packed_format else ""
    return f"{message}, {len(tensors)} tensors for {chosen.architecture}{beside}"


def _write(
    out: Path, tensors: dict[str, Tensor], content: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Write a folder of adapters: tensors, the config of PEFT and the tokenizer."""
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    (out / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.stated.pop(GENERATION, None)  # the base folder has the generation options
    tokenizer.save(out)


def _as_difference(rows: Sequence[Row], adapter: LoRA, read: peft.Read) -> tuple[LoRA, peft.Read]:
    """Turn a PiSSA adapter into one of twice the rank beside the original weights.

    The new product is B A minus the product taken out of the weights. Also returns a reader of the
    new tensors.
    """
    scales = {row.ours.name: adapter.scale(max(1, adapter.rank_of(row.ours))) for row in rows}
    factors = {adapter_name(row.ours, which): row.ours for row in rows for which in (A, B)}

    def read_both(name: str) -> Tensor:
        if name not in factors:
            return read(name)
        spec = factors[name]
        if name == adapter_name(spec, A):
            return torch.cat([read(name), read(adapter_name(spec, TAKEN_A))], dim=-2)
        # PEFT adds the scaled product to the original weight: less the unscaled part taken out.
        taken = read(adapter_name(spec, TAKEN_B)) / scales[spec.name]
        return torch.cat([read(name), -taken], dim=-1)

    twice = {
        "init": RANDOM,
        "rank": 2 * adapter.rank,
        "ranks": {word: 2 * rank for word, rank in adapter.ranks.items()},
        # Keeps alpha / rank, or alpha / sqrt(rank), at twice the rank.
        "alpha": adapter.alpha * (2**0.5 if adapter.rank_stabilized else 2),
    }
    return replace(adapter, **twice), read_both


def load_adapters(folder: Path, model: nn.Module, section: Model, adapter: Adapter) -> None:
    """Fill an adapter's tensors, or this rank's shards, from a PEFT folder, in place.

    section: the model's config. Raises CheckpointError for a misfit.
    """
    assert isinstance(section, Decoder), section
    assert isinstance(adapter, LoRA), adapter
    rows, tensors = _rows_of(folder, section), exact_state(model)
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        copied = read_config(folder).get("modules_to_save") or []
        values_by_name = peft.read_whole_parameters(rows, adapter, stored, copied)
        for place in peft.adapted_modules(rows, adapter):
            values_by_name |= peft.read_place(place, adapter, stored)
        _refuse_others(folder, rows, adapter, stored, tensors)
        for name, values in values_by_name.items():
            if name in tensors:
                _check(folder, name, tensors[name], values)
                copy_local(tensors[name], values)
        round_masters(model)
    except KeyError as error:
        message = f"{folder / WEIGHTS} has no tensor {error.args[0]}"
        keys = "adapter.target_modules, adapter.bias or adapter.modules_to_save"
        raise CheckpointError(f"{message}, which {keys} names here") from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _refuse_others(
    folder: Path,
    rows: Sequence[Row],
    adapter: LoRA,
    stored: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    """Raise CheckpointError for a stored tensor left out by the load.

    Exempt are copies of base weights, added by PEFT to the adapters of an embedding.
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
            hint = f"adapter.modules_to_save=[{row.ours.name}]"
            if row.ours.role == BIAS:
                hint = f"adapter.bias=lora or all, or {hint}"
        else:
            hint = "adapter.target_modules of the folder's target_modules"
            hint += ", or merge the adapters into its base with PEFT"
        message = f"{folder / WEIGHTS} has {name}, which this run's adapter does not train"
        raise CheckpointError(f"{message} and would leave out. Choose {hint}")


def _is_copy(ours: Tensor, stored: Tensor, *, transposed: bool) -> bool:
    """Whether a stored tensor has the values of a parameter, in either format."""
    values = stored.T if transposed and stored.dim() > 1 else stored
    if ours.shape != values.shape:
        return False
    mine = local(ours).detach()
    shard = select(values, owned(ours)).to(mine.device)
    return torch.equal(mine.to(shard.dtype), shard) or torch.equal(mine, shard.to(mine.dtype))


def _check(folder: Path, name: str, ours: Tensor, stored: Tensor) -> None:
    if ours.shape != stored.shape:
        message = f"{name} is {tuple(stored.shape)} there and {tuple(ours.shape)} here"
        raise CheckpointError(
            f"{folder} does not fit this model: {message}. Choose the same adapter"
        )


def _rows_of(folder: Path, section: Decoder) -> Sequence[Row]:
    """Find the family rows matching the tensor names of a PEFT folder."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        names = {name.removeprefix(peft.PREFIX) for name in file.keys()}  # noqa: SIM118
    unknown = names
    for family in folders.all_families():
        if not family.unsaid(section):
            rows = family.rows(section)
            modules = {row.theirs.name.rpartition(".")[0] for row in rows}
            unmatched = {
                n for n in names if not any(n.startswith(f"{module}.") for module in modules)
            }
            if not unmatched:
                return rows
            unknown = min(unknown, unmatched, key=len)
    message = f"{folder} has {min(unknown)}, which is beside no matrix of this model"
    raise CheckpointError(f"{message}. Choose the base that its adapters are of")
