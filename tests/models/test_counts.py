"""The torch-free counts of the config against the model that is built from it."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from moe_helpers import section, tokens
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import forge
from forge.compose.hydra_adapter import CONF
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mla import MLA
from forge.config.model.moe import MoE as MoEConfig
from forge.models.decoder import Decoder
from forge.models.feed_forward import FeedForward
from forge.models.moe import MoE

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")
MOE_PARTS = {"router": "routers", "experts": "experts", "shared": "shared experts"}


def built(chosen: DecoderConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(chosen)


def size(module: nn.Module | None) -> int:
    return sum(p.numel() for p in module.parameters()) if module is not None else 0


def shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]


def table(chosen: DecoderConfig) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.name, one.shape) for one in chosen.tensors()]


def part_of(name: str) -> str:
    """blocks.0.attention_norm.weight is a norm, blocks.0.attention.q_norm.weight attention."""
    module = name.split(".")[2] if name.startswith("blocks.") else name.split(".")[0]
    known = {"feed_forward": "feed-forward", "positions": "embedding", "output": "output head"}
    return "norms" if module.endswith("norm") else known.get(module, module)


DENSE = {"num_experts": 0}
MLA_WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}
KINDS = {
    "n_kv_heads": (None, 2, 1),
    "norm_type": ("rmsnorm", "layernorm"),
    "gated_mlp": (None, True, False),
    "position": ("rope", "learned"),
    **dict.fromkeys(("bias", "tie_embeddings", "qk_norm"), (False, True)),
    "activation": ("silu", "gelu"),
    "ffn_hidden_dim": (48, None),
}


@pytest.mark.nightly
def test_params_by_part_is_exact_for_all_combinations(small_section) -> None:
    for values in product(*KINDS.values()):
        chosen = small_section(**dict(zip(KINDS, values, strict=True)))
        model, counts = built(chosen), dict.fromkeys(PARTS, 0)
        for name, parameter in model.named_parameters():
            counts[part_of(name)] += parameter.numel()
        assert counts == chosen.params_by_part(), chosen
        assert table(chosen) == shapes(model)


OF_LAYERS = {
    "head_dim": 12,
    "norm_placement": "both",
    "norm_unit_offset": True,
    "q_bias": True,
    "o_bias": True,
    "mlp_bias": True,
    "kinds": {"a": {"n_heads": 2, "head_dim": 6, "norm_placement": "post", "qk_norm": True}},
    "norm_type": "layernorm",
    "bias": True,
    "qk_norm": True,
    "n_kv_heads": 2,
    "position": "learned",
    "qk_norm_width": "all",
    "v_norm": True,
    "attention_sink": True,
    "share_kv_projections": True,
    "attention_output_gate": True,
    "qk_norm_with_scale": False,
    "moe": MoEConfig(num_experts=4, shared_experts=1, first_num_dense_layers=1),
    "other moe": MoEConfig(
        num_experts=4,
        router_bias=True,
        expert_bias=True,
        shared_experts=2,
        shared_hidden_dim=20,
        shared_expert_gate=True,
        beside_dense=True,
    ),
}


@pytest.mark.parametrize("pair", list(combinations(OF_LAYERS, 2)), ids=" ".join)
def test_the_table_is_that_of_the_built_model_for_every_pair_of_options(pair, small_section):
    chosen = {name.removeprefix("other "): OF_LAYERS[name] for name in pair}
    layers = ["a", "default"] if "kinds" in chosen else []
    section = small_section(n_layers=3, layers=layers, **chosen)
    model = built(section)
    assert table(section) == shapes(model)
    assert section.num_params_estimate == size(model)
    initial = {one.name: one.initial for one in section.tensors() if len(one.shape) == 1}
    assert initial == {
        name: 1.0 if name.endswith("norm.weight") and not section.norm_unit_offset else 0.0
        for name in initial
    }


@pytest.mark.parametrize(
    ("gated", "shared", "width"), list(product((None, False), (0, 1, 3), (24, None)))
)
def test_params_of_experts(gated, shared, width) -> None:
    """KempnerForge builds one of any number of shared experts, and counts all."""
    layout = {"frequency": 2, "first_num_dense_layers": 2}
    model = {"gated_mlp": gated, "n_layers": 5}
    chosen = section(model=model, shared_experts=shared, ffn_hidden_dim=width, **layout)
    model, parts = built(chosen), chosen.params_by_part()
    layers = [block.feed_forward for block in model.blocks.values()]
    sparse = [layer for layer in layers if isinstance(layer, MoE)]
    for name, part in MOE_PARTS.items():
        assert parts[part] == sum(size(getattr(layer, name)) for layer in sparse), part
    dense = [layer for layer in layers if isinstance(layer, FeedForward)]
    assert parts["feed-forward"] == sum(map(size, dense))
    assert table(chosen) == shapes(model)
    assert chosen.num_params_estimate == sum(parts.values()) == size(model)
    idle = sum(size(layer.experts) * (8 - 2) // 8 for layer in sparse)
    assert chosen.num_active_params == size(model) - idle
    if shared:
        assert layers[3].shared.w_up.weight.shape == (shared * (width or 48), 32)


def test_published_sizes() -> None:
    llama, mixtral = DecoderConfig(), forge.compose(["model=mixtral_8x7b"]).model
    assert isinstance(mixtral, DecoderConfig)
    assert size(built(llama)) == 6_738_415_616 == llama.num_params_estimate
    assert size(built(mixtral)) == 46_702_792_704 == mixtral.num_params_estimate
    assert mixtral.num_active_params == 12_879_925_248


def presets():
    """All; sizes that take the rest from another one of the family for `make nightly`."""
    for file in sorted((CONF / "model").glob("*.yaml")):
        marks = [] if "/schema/" in file.read_text() else [pytest.mark.nightly]
        yield pytest.param(file.stem, marks=marks)


@pytest.mark.parametrize("name", list(presets()))
def test_the_table_of_every_preset_is_that_of_the_built_model(name) -> None:
    chosen = forge.compose([f"model={name}", "model.vocab_size=512"]).model
    assert isinstance(chosen, DecoderConfig)
    assert table(chosen) == shapes(built(chosen))


@pytest.mark.parametrize(
    ("model", "moe"),
    [
        ({"n_kv_heads": 2}, DENSE),
        ({"activation": "gelu"}, DENSE),
        ({"tie_embeddings": True}, DENSE),
        ({"position": "learned"}, DENSE),
        ({"bias": True, "qk_norm": True}, DENSE),
        ({"head_dim": 12, "norm_placement": "both", "o_bias": True}, DENSE),
        ({"attention_output_gate": True, "share_kv_projections": True, "v_norm": True}, DENSE),
        ({"attn_logits_soft_cap": 2.0, "attention_sink": True, "n_kv_heads": 2}, DENSE),
        ({"chunk_attn_window_size": 4, "qk_norm": True, "qk_norm_width": "all"}, DENSE),
        ({"mixer": MLA(**MLA_WIDTHS)}, DENSE),
        ({"mixer": MLA(q_lora_rank=12, **MLA_WIDTHS)}, {"shared_experts": 1}),
        ({}, {"shared_experts": 2}),
        ({}, {"top_k": 4}),
        ({}, {"frequency": 2}),
        ({}, {"ffn_hidden_dim": None}),
        (
            {"activation": "quick_gelu", "mlp_activations_limit": 0.2},
            {"router_bias": True, "expert_bias": True, "score_on_input": True},
        ),
        (
            {"mlp_up_offset": 1.0},
            {
                "shared_experts": 1,
                "shared_hidden_dim": 20,
                "shared_expert_gate": True,
                "beside_dense": True,
            },
        ),
    ],
    ids=str,
)
def test_flops_per_token_are_those_counted(model, moe) -> None:
    """The counter sees every matrix product, and with the math kernel all seq^2 scores.

    With a capacity of 1 experts compute as many rows as tokens are routed.
    """
    moe = {"capacity_factor": 1.0, "balance_scope": "micro_batch"} | moe
    chosen = section(model={"sdpa_backend": "math", "max_seq_len": 16} | model, **moe)
    made, text = Decoder(chosen), tokens(2)
    with FlopCounterMode(display=False) as counter:
        made(text).sum().backward()
    assert counter.get_total_flops() == chosen.flops_per_token(16) * text.numel()


def test_presets_that_stand_beside_a_dense_one_cost_as_much_a_token() -> None:
    for dense, sparse in (("tiny", "moe_tiny"), ("small", "moe_small")):
        costs = [
            forge.compose([f"model={name}"]).validate().config.model.flops_per_token(256) or 0
            for name in (dense, sparse)
        ]
        assert costs[1] == pytest.approx(costs[0], rel=0.005)
        assert costs[0] > 1e6
