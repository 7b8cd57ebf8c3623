"""Which presets can be written as folders of Hugging Face, and with what weights."""

from __future__ import annotations

from math import prod

import pytest

import forge
from forge.compose.hydra_adapter import CONF
from forge.config.model.decoder import Decoder
from forge.families import folder as folders
from forge.families.table import shapes

PRESETS = sorted(file.stem for file in (CONF / "model").glob("*.yaml") if file.stem != "hf")
NOT_SAID = {"nanochat"}  # skips, which no family has


def section(preset: str) -> Decoder:
    found = forge.compose([f"model={preset}"]).model
    assert isinstance(found, Decoder)
    if found.vocab_size == "auto":
        found.vocab_size = 4096
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_a_family_says_a_preset_and_has_a_place_for_all_of_it(preset: str) -> None:
    """As many values as the model has, and a selection bias where the family has one."""
    model = section(preset)
    said = [one for one in folders.all_families() if not one.unsaid(model)]
    assert bool(said) == (preset not in NOT_SAID)
    for one in said[:1]:
        rows = one.rows(model)
        biases = sum(row.ours.size for row in rows if row.ours.role == "buffer")
        size = sum(prod(shape) for shape in shapes(rows).values())
        assert size - biases == model.num_params_estimate
        assert {row.ours.name for row in rows} >= {spec.name for spec in model.tensors()}
