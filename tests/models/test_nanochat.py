"""nanochat's parts against plain torch made from their description, and their counts against its
published integers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import nanochat as reference
from torch import Tensor

import forge
from forge.config.model.decoder import Decoder as Section
from forge.config.model.tensors import GATE, RESIDUAL_SCALAR, VALUE_EMBEDDING, X0_SCALAR
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sampling import DrawOptions, continue_rows

COUNTS = json.loads((Path(__file__).parent / "nanochat_counts.json").read_text())
SMALL = (
    "model=nanochat model.dim=64 model.n_layers=4 model.n_heads=4 model.n_kv_heads=2 "
    "model.vocab_size=301 model.pad_vocab_to=1 model.max_seq_len=64 model.short_window=5"
)
SHAPE = reference.Shape(layers=4, heads=4, kv_heads=2, windows=(5, 5, 5, 64), vocab=301)
NAMES = {
    "attention.wq": "attn.c_q",
    "attention.wk": "attn.c_k",
    "attention.wv": "attn.c_v",
    "attention.wo": "attn.c_proj",
    "attention.value_embedding.gate": "attn.ve_gate",
    "feed_forward.w_up": "mlp.c_fc",
    "feed_forward.w_down": "mlp.c_proj",
}
OUTSIDE = {
    "embedding.weight": "transformer.wte.weight",
    "output.weight": "lm_head.weight",
    "smear.gate": "smear_gate.weight",
    "smear.scale": "smear_lambda",
    "backout.scale": "backout_lambda",
}


def section(words: str = SMALL) -> Section:
    model = forge.compose(words.split()).model
    assert isinstance(model, Section)
    return model


def model_of(words: str = SMALL) -> Decoder:
    """In float64, with every parameter moved away from its first value."""
    model = Decoder(section(words))
    init_weights(model, 0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return model


def flipped(weight: Tensor, heads: int) -> Tensor:
    """The second half of each head negated: turned the other way, heads give the same scores."""
    sign = torch.ones(heads, 2, weight.shape[0] // heads // 2, 1, dtype=weight.dtype)
    sign[:, 1] = -1
    return weight * sign.view(-1, 1)


def theirs(values: dict[str, Tensor]) -> reference.Weights:
    """Our parameters, or gradients, under nanochat's names."""
    w = {name: values[ours] for ours, name in OUTSIDE.items()}
    for ours, name in (("residual_scalar", "resid_lambdas"), ("x0_scalar", "x0_lambdas")):
        w[name] = torch.cat([values[f"blocks.{layer}.{ours}"] for layer in range(SHAPE.layers)])
    for layer in range(SHAPE.layers):
        for ours, name in NAMES.items():
            if (key := f"blocks.{layer}.{ours}.weight") in values:
                w[f"transformer.h.{layer}.{name}.weight"] = values[key]
        for matrix, heads in (("c_q", SHAPE.heads), ("c_k", SHAPE.kv_heads)):
            key = f"transformer.h.{layer}.attn.{matrix}.weight"
            w[key] = flipped(w[key], heads)
        if (key := f"blocks.{layer}.attention.value_embedding.weight") in values:
            w[f"value_embeds.{layer}.weight"] = values[key]
    return w


def tokens(*shape: int) -> Tensor:
    return torch.randint(SHAPE.vocab, shape, generator=torch.Generator().manual_seed(2))


def test_logits_and_gradients_are_those_of_the_description() -> None:
    model, ids = model_of(), tokens(3, 24)
    w = theirs({name: p.detach().clone() for name, p in model.named_parameters()})
    w = {name: values.requires_grad_() for name, values in w.items()}
    ours, expected = model(ids), reference.logits(w, SHAPE, ids)
    assert (ours - expected).abs().max() < 1e-12
    factors = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3)).double()
    (ours * factors).sum().backward()
    (expected * factors).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    ours_by_name = theirs(gradients)
    assert set(ours_by_name) == set(w)
    for name, values in w.items():
        assert values.grad is not None
        assert values.grad.norm() > 0, name
        difference = (ours_by_name[name] - values.grad).norm() / values.grad.norm()
        assert difference < 1e-10, (name, difference)


@pytest.mark.parametrize("entry", COUNTS, ids=lambda entry: f"d{entry['depth']}")
def test_parameters_and_flops_are_the_published_integers(entry: dict[str, Any]) -> None:
    depth, dim, heads = (entry[key] for key in ("depth", "dim", "heads"))
    model = section(f"model=nanochat model.n_layers={depth} model.dim={dim} model.n_heads={heads}")
    by_role: dict[str, int] = {}
    for spec in model.tensors():
        by_role[spec.role] = by_role.get(spec.role, 0) + spec.size
    scalars = sum(by_role[role] for role in (GATE, RESIDUAL_SCALAR, X0_SCALAR))
    assert by_role["embedding"] == entry["wte"]
    assert by_role[VALUE_EMBEDDING] == entry["value_embeds"]
    assert by_role["head"] == entry["lm_head"]
    assert by_role["matrix"] == entry["transformer_matrices"]
    assert scalars == entry["scalars"]
    assert model.num_params_estimate == sum(model.params_by_part().values()) == entry["total"]
    assert model.flops_per_token(2048) == entry["flops_tok"]


def test_initial_values_are_those_of_the_table() -> None:
    words = "model=nanochat model.n_layers=3 model.dim=512 model.n_heads=4 model.vocab_size=2048"
    model = Decoder(section(words))
    init_weights(model, 0)
    bound = (3 / 512) ** 0.5
    values = {name: p.detach() for name, p in model.named_parameters()}
    for name, std in {"embedding.weight": 0.8, "output.weight": 0.001}.items():
        assert values[name].std().item() == pytest.approx(std, rel=0.01)
    attention, last = "blocks.2.attention", "blocks.2"
    uniform = {f"{attention}.{m}.weight": bound for m in ("wq", "wk", "wv", "value_embedding")}
    for name, limit in (uniform | {f"{last}.feed_forward.w_up.weight": 0.4 * bound}).items():
        assert values[name].abs().max().item() == pytest.approx(limit, rel=0.01)
        assert values[name].std().item() == pytest.approx(limit / 3**0.5, rel=0.01)
    for name in (f"{attention}.wo.weight", f"{last}.feed_forward.w_down.weight", "smear.scale"):
        assert not values[name].any()
    for name in (f"{attention}.value_embedding.gate.weight", "smear.gate"):
        assert values[name].min() >= 0
        assert values[name].max() <= 0.02
        assert values[name].std() > 0.004
    scalars = [values[f"blocks.{n}.residual_scalar"].item() for n in range(3)]
    assert scalars == pytest.approx([1.15, 1.10, 1.05])
    assert [values[f"blocks.{n}.x0_scalar"].item() for n in range(3)] == pytest.approx(
        [0.20, 0.125, 0.05]
    )
    assert values["backout.scale"].item() == pytest.approx(0.2)


@torch.no_grad()
def test_generation_with_a_cache_equals_generation_without() -> None:
    """Rows of several lengths, two of them equal: their cache is copied, the last embedding too."""
    model, ids = model_of(), tokens(3, 24)
    cache = model.new_cache()
    for first, last in ((0, 9), (9, 10), (10, 11), (11, 17), (17, 24)):
        piece = model(ids[:, first:last], cache=cache)
        assert (piece - model(ids[:, :last])[:, first:]).abs().max() < 1e-12
    cache.select(torch.tensor([2, 0, 2]))
    following = tokens(3, 1)
    rows = torch.cat((ids[[2, 0, 2]], following), 1)
    assert (model(following, cache=cache)[:, -1] - model(rows)[:, -1]).abs().max() < 1e-12
    prompts = [[5, 6, 7, 8, 9, 10, 11, 12], [3], [5, 6, 7, 8, 9, 10, 11, 12], [40, 41, 42]]
    drawn = [
        continue_rows(
            model,
            prompts,
            30,
            DrawOptions(use_cache=cached, logprobs=True),
            torch.device("cpu"),
        )
        for cached in (True, False)
    ]
    assert drawn[0].tokens == drawn[1].tokens
    torch.testing.assert_close(drawn[0].logprobs, drawn[1].logprobs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_documents_of_a_row_are_read_alone() -> None:
    model, ids = model_of(), tokens(2, 24)
    documents = (torch.arange(24) >= 10).long().expand(2, 24)
    together = model.logits(model.hidden(ids, documents=documents))
    alone = torch.cat((model(ids[:, :10]), model(ids[:, 10:])), 1)
    assert (together - alone).abs().max() < 1e-12
