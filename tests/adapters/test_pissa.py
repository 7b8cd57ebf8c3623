"""Adapters that begin as the largest parts of the weights, against PEFT's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.refusing import SMALL, resolved

from forge.adapters.adapter import adapter_of, adapters_off
from forge.config.adapters.adapter import adapter_prefix, is_added
from forge.models.plain import make_model
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

TOKENS = torch.arange(48).view(2, 24) * 7 % 300
PISSA = "adapter=lora adapter.init=pissa adapter.rank=4 adapter.alpha=6 adapter.dropout=0"


def begun(options: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any]:
    """A config, its model at the first step, and the model without adapters."""
    words = f"{PISSA} run.device=cpu {options}".split()
    config = resolved([*SMALL, *words]).config
    model = build_model(config, torch.device("cpu"), Ranks(), dtype)
    plain = make_model(config.model).to(dtype)
    own = {n: v for n, v in model.state_dict().items() if not is_added(n)}
    plain.load_state_dict(copy.deepcopy(own))
    adapter_of(config).take_out(model)
    return config, model, plain


@pytest.mark.parametrize("options", ["", "adapter.rank_stabilized=true", "adapter.dora=true"])
def test_pairs_and_what_weights_keep_are_those_of_peft(options: str) -> None:
    from peft import LoraConfig, get_peft_model

    config, model, plain = begun(f"{options} adapter.ranks={{wk:3}}")
    expected = plain(TOKENS)
    ranks = {adapter_prefix(one): config.adapter.rank_of(one) for one in config.model.tensors()}
    ranks = {name: rank for name, rank in ranks.items() if rank}
    theirs: Any = get_peft_model(
        plain,
        LoraConfig(
            r=4,
            lora_alpha=6,
            init_lora_weights="pissa",
            target_modules=list(ranks),
            rank_pattern=ranks,
            use_rslora=config.adapter.rank_stabilized,
            use_dora=config.adapter.dora,
        ),
    )
    for name, rank in ranks.items():
        own, other = model.get_submodule(name), theirs.get_submodule(f"base_model.model.{name}")
        assert own.lora_a.shape[0] == rank
        assert torch.allclose(own.weight, other.base_layer.weight, atol=1e-6), name
        pair = other.lora_B["default"].weight @ other.lora_A["default"].weight
        assert torch.allclose(own.lora_b @ own.lora_a, pair, atol=1e-6), name
        assert not own.lora_taken_a.requires_grad
        assert own.lora_a.requires_grad
    assert torch.allclose(model(TOKENS), expected, atol=1e-5)
    assert torch.allclose(theirs(TOKENS), expected, atol=1e-5)


def test_a_model_begins_as_its_base_and_is_that_without_its_adapters() -> None:
    """Experts too."""
    options = "adapter.target_modules=[all] model.moe.num_experts=4"
    config, model, plain = begun(options, torch.float64)
    one = next(one for one in config.model.tensors() if one.of_experts)
    experts = model.get_submodule(adapter_prefix(one).rpartition(".")[0])
    left = getattr(experts, one.name.rpartition(".")[2])
    assert not torch.allclose(left, plain.state_dict()[one.name], atol=1e-3)
    assert torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-10)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.requires_grad:
                values.add_(0.1)
                assert is_added(name)
    assert not torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-2)
    with adapters_off(model):
        assert torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-10)
