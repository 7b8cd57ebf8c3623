"""The torch-free counts of the config against the model that is built from it."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from forge.config.model import Decoder as DecoderConfig
from forge.models.decoder import Decoder

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")


def part_of(name: str) -> str:
    """blocks.0.attention_norm.weight is a norm, blocks.0.attention.q_norm.weight attention."""
    module = name.split(".")[2] if name.startswith("blocks.") else name.split(".")[0]
    known = {"feed_forward": "feed-forward", "positions": "embedding", "output": "output head"}
    return "norms" if module.endswith("norm") else known.get(module, module)


def counted(model: Decoder) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    return counts


BOOLEANS = ("bias", "tie_embeddings", "qk_norm")
KINDS = ((None, 2, 1), ("rmsnorm", "layernorm"), (None, True, False), ("rope", "learned"))
COMBINATIONS = list(product(*KINDS, *[(False, True)] * len(BOOLEANS)))


def test_params_by_part_is_exact_for_all_combinations(small_section) -> None:
    names = ("n_kv_heads", "norm_type", "gated_mlp", "position", *BOOLEANS)
    for activation, ffn, values in product(("silu", "gelu"), (48, None), COMBINATIONS):
        options = dict(zip(names, values, strict=True))
        section = small_section(activation=activation, ffn_hidden_dim=ffn, **options)
        with torch.device("meta"):
            model = Decoder(section)
        assert counted(model) == section.params_by_part(), section
        assert section.num_params_estimate == sum(p.numel() for p in model.parameters())


def test_llama_7b_has_its_published_size() -> None:
    with torch.device("meta"):
        model = Decoder(DecoderConfig())
    size = sum(p.numel() for p in model.parameters())
    assert size == 6_738_415_616 == DecoderConfig().num_params_estimate


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_kv_heads": 2},
        {"activation": "gelu"},
        {"tie_embeddings": True},
        {"position": "learned"},
        {"bias": True},
        {"qk_norm": True},
    ],
    ids=str,
)
def test_flops_per_token_are_those_counted(small_section, options) -> None:
    """The counter sees every matrix product, and with the math kernel all seq^2 scores."""
    section = small_section(sdpa_backend="math", **options)
    model = Decoder(section)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 16, dtype=torch.int64)).sum().backward()
    assert counter.get_total_flops() == section.flops_per_token(16) * 2 * 16
