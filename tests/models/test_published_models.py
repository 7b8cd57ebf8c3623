"""Presets against config.json of the published models: as many parameters as the class of
transformers has, and the options that reading the file gives.
"""

from __future__ import annotations

import pytest
import torch
from published_configs import PUBLISHED
from transformers import AutoConfig, AutoModelForCausalLM

import forge
from forge.compose.hydra_adapter import CONF
from forge.config.model.decoder import Decoder
from forge.families.family import decoder_section
from forge.families.folder import family_of

OWN = {"nanochat", "tiny", "small", "moe_tiny", "moe_small", "hf"}
"""Presets of no published model."""
PRESETS = sorted({file.stem for file in (CONF / "model").glob("*.yaml")} - OWN)
IN_CI = ("deepseek2_16b", "gemma_2b", "gpt2", "llama3_2_1b", "mixtral_8x7b", "qwen3_30b_a3b")
"""Presets whose class of transformers is built in `make test`."""


def section(preset: str) -> Decoder:
    chosen = forge.compose([f"model={preset}"]).model
    assert isinstance(chosen, Decoder)
    return chosen


@pytest.mark.parametrize(
    "preset",
    [pytest.param(name, marks=[] if name in IN_CI else pytest.mark.nightly) for name in PRESETS],
)
def test_a_preset_is_as_large_as_the_class_of_transformers(preset: str) -> None:
    content = dict(PUBLISHED[preset])
    config = AutoConfig.for_model(content.pop("model_type"), **content)
    with torch.device("meta"):
        peer = AutoModelForCausalLM.from_config(config)
    assert section(preset).num_params_estimate == sum(p.numel() for p in peer.parameters())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_computes_what_config_json_says(preset: str) -> None:
    family = family_of(PUBLISHED[preset]["model_type"])
    assert family is not None
    keys = family.keys(PUBLISHED[preset])
    options = family.options(keys)
    keys.finish()
    assert keys.faults == []
    assert family.differences(section(preset), decoder_section(options)) == []
