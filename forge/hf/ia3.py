"""Vectors of IA3 as PEFT keeps them: adapter_config.json, and its names for our tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import SCALES, name_of
from forge.config.adapters.ia3 import IA3
from forge.families.table import Row
from forge.hf.peft import PREFIX, Read, module_of, target_names


def modules(rows: Sequence[Row], section: IA3) -> dict[str, list[Row]]:
    """Every module of theirs that has a vector, with the matrices of ours that are in it. Raises
    ValueError for what PEFT has no names for.
    """
    found: dict[str, list[Row]] = {}
    for one in rows:
        if one.ours.name.endswith(".weight"):
            found.setdefault(module_of(one), []).append(one)
    found = {n: parts for n, parts in found.items() if any(section.has(p.ours) for p in parts)}
    for name, parts in found.items():
        chosen = [one for one in parts if section.has(one.ours)]
        into = {section.scales_input(one.ours) for one in chosen}
        if any(one.theirs.dim for one in parts) or len(into) > 1 or (into == {True} and parts[1:]):
            what = f"{name} of theirs holds several of ours, which have vectors of their own"
            raise ValueError(f"{what}; merge them: --format hf --merge")
    return found


def tensors(rows: Sequence[Row], section: IA3, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Their tensors with their names: [1, in] of what enters, [out, 1] of what is given."""
    for name, parts in modules(rows, section).items():
        key = f"{PREFIX}{name}.ia3_l"
        if section.scales_input(parts[0].ours):
            yield key, read(name_of(parts[0].ours, SCALES)).unsqueeze(0)
            continue
        whole = torch.ones(sum(one.ours.shape[0] for one in parts))
        for one in parts:
            if section.has(one.ours):
                size = one.ours.shape[0]
                index = torch.arange(size) if one.index is None else torch.tensor(one.index)
                whole[index] = read(name_of(one.ours, SCALES)).float()
        yield key, whole.unsqueeze(1)


def content(rows: Sequence[Row], section: IA3, base: str | None) -> dict[str, Any]:
    """adapter_config.json."""
    found = modules(rows, section)
    words: Mapping[str, str] = target_names(rows, found)
    inputs = {words[n] for n, parts in found.items() if section.scales_input(parts[0].ours)}
    return {
        "peft_type": "IA3",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "target_modules": sorted(set(words.values())),
        "feedforward_modules": sorted(inputs),
        "fan_in_fan_out": any(one.theirs.transposed for parts in found.values() for one in parts),
        "init_ia3_weights": True,
        "modules_to_save": None,
    }
