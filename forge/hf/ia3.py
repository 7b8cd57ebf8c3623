"""Vectors of IA3 in PEFT's format: adapter_config.json, and PEFT's names of forge's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import SCALES, adapter_name
from forge.config.adapters.ia3 import IA3
from forge.families.table import Row
from forge.hf.peft import PREFIX, Read, module_of, target_names


def _modules(rows: Sequence[Row], section: IA3) -> dict[str, list[Row]]:
    """Return every module with a vector, with forge's matrices inside of the module.

    Raises ValueError for vectors without names in PEFT.
    """
    parts_of: dict[str, list[Row]] = {}
    for row in rows:
        if row.ours.name.endswith(".weight"):
            parts_of.setdefault(module_of(row), []).append(row)
    parts_of = {
        n: parts for n, parts in parts_of.items() if any(section.has(p.ours) for p in parts)
    }
    for name, parts in parts_of.items():
        chosen = [row for row in parts if section.has(row.ours)]
        inputs = {section.scales_input(row.ours) for row in chosen}
        if (
            any(row.theirs.dim for row in parts)
            or len(inputs) > 1
            or (inputs == {True} and parts[1:])
        ):
            message = f"{name} of theirs holds several of ours, which have vectors of their own"
            raise ValueError(f"{message}; merge them: --format hf --merge")
    return parts_of


def tensors(rows: Sequence[Row], section: IA3, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Yield PEFT's tensors with their names: [1, in] for inputs, [out, 1] for outputs."""
    for name, parts in _modules(rows, section).items():
        key = f"{PREFIX}{name}.ia3_l"
        if section.scales_input(parts[0].ours):
            yield key, read(adapter_name(parts[0].ours, SCALES)).unsqueeze(0)
            continue
        scales = torch.ones(sum(row.ours.shape[0] for row in parts))
        for row in parts:
            if section.has(row.ours):
                size = row.ours.shape[0]
                index = torch.arange(size) if row.index is None else torch.tensor(row.index)
                scales[index] = read(adapter_name(row.ours, SCALES)).float()
        yield key, scales.unsqueeze(1)


def adapter_config(rows: Sequence[Row], section: IA3, base: str | None) -> dict[str, Any]:
    """Return the content of adapter_config.json."""
    parts_of = _modules(rows, section)
    words: Mapping[str, str] = target_names(rows, parts_of)
    inputs = {words[n] for n, parts in parts_of.items() if section.scales_input(parts[0].ours)}
    return {
        "peft_type": "IA3",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "target_modules": sorted(set(words.values())),
        "feedforward_modules": sorted(inputs),
        "fan_in_fan_out": any(
            row.theirs.transposed for parts in parts_of.values() for row in parts
        ),
        "init_ia3_weights": True,
        "modules_to_save": None,
    }
