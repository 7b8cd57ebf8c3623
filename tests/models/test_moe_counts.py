"""The torch-free counts of models with experts, against what is built."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from moe_helpers import section, tokens
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import forge
from forge.config.model import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.feed_forward import FeedForward
from forge.models.moe import MoE

PARTS = {"router": "routers", "experts": "experts", "shared": "shared experts"}
GATES, SHARED, WIDTHS = (None, False), (0, 1, 3), (24, None)


def built(chosen: DecoderConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(chosen)


def size(module: nn.Module | None) -> int:
    return sum(p.numel() for p in module.parameters()) if module is not None else 0


@pytest.mark.parametrize(("gated", "shared", "width"), list(product(GATES, SHARED, WIDTHS)))
def test_parameters_by_part(gated: bool | None, shared: int, width: int | None) -> None:
    """KempnerForge builds one of any number of shared experts, and counts all."""
    layout = {"frequency": 2, "first_num_dense_layers": 2}
    model = {"gated_mlp": gated, "n_layers": 5}
    chosen = section(model=model, shared_experts=shared, ffn_hidden_dim=width, **layout)
    model, parts = built(chosen), chosen.params_by_part()
    layers = [block.feed_forward for block in model.blocks.values()]
    sparse = [layer for layer in layers if isinstance(layer, MoE)]
    for name, part in PARTS.items():
        assert parts[part] == sum(size(getattr(layer, name)) for layer in sparse), part
    dense = [layer for layer in layers if isinstance(layer, FeedForward)]
    assert parts["feed-forward"] == sum(map(size, dense))
    assert chosen.num_params_estimate == sum(parts.values()) == size(model)
    idle = sum(size(layer.experts) * (8 - 2) // 8 for layer in sparse)
    assert chosen.num_active_params == size(model) - idle
    if shared:
        assert layers[3].shared.w_up.weight.shape == (shared * (width or 48), 32)


def test_mixtral_has_its_published_size() -> None:
    chosen = forge.compose(["model=mixtral_8x7b"]).model
    assert isinstance(chosen, DecoderConfig)
    assert size(built(chosen)) == 46_702_792_704 == chosen.num_params_estimate
    assert chosen.num_active_params == 12_879_925_248


@pytest.mark.parametrize(
    "options",
    [{}, {"shared_experts": 2}, {"top_k": 4}, {"frequency": 2}, {"ffn_hidden_dim": None}],
    ids=str,
)
def test_flops_per_token_are_those_counted(options: dict) -> None:
    """With a capacity of 1 experts compute as many rows as tokens are routed."""
    options = {"capacity_factor": 1.0, "balance_scope": "micro_batch"} | options
    chosen = section(model={"sdpa_backend": "math", "max_seq_len": 16}, **options)
    model, text = Decoder(chosen), tokens(2)
    with FlopCounterMode(display=False) as counter:
        model(text).sum().backward()
    assert counter.get_total_flops() == chosen.flops_per_token(16) * text.numel()


def test_presets_that_stand_beside_a_dense_one_cost_as_much_a_token() -> None:
    for dense, sparse in (("tiny", "moe_tiny"), ("small", "moe_small")):
        costs = [
            forge.compose([f"model={name}"]).validate().config.model.flops_per_token(256) or 0
            for name in (dense, sparse)
        ]
        assert costs[1] == pytest.approx(costs[0], rel=0.005)
        assert costs[0] > 1e6
