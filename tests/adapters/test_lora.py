"""Low-rank adapters against formulas written out, and against PEFT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusing import SMALL, resolved
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from forge.adapters.adapter import adapters_off
from forge.adapters.lora import merged_weight
from forge.config.adapters.adapter import MAGNITUDE, A, B, adapter_name, adapter_prefix, is_added
from forge.models.plain import make_model
from forge.parallel.ranks import Ranks
from forge.planning.flops import flops_per_token
from forge.training.models import build_model

TOKENS = torch.arange(48).view(2, 24) * 7 % 300
LORA = "adapter=lora adapter.rank=4 adapter.alpha=6 adapter.dropout=0"
CASES = {
    "plain": "adapter.ranks={wk:3}",
    "rank stabilised": "adapter.ranks={wk:3} adapter.rank_stabilized=true",
    "dora": "adapter.ranks={wk:3} adapter.dora=true model.bias=true",
}
MLA = "+mixer@model.mixer=mla model.mixer.q_lora_rank=12 model.mixer.kv_lora_rank=14"
WITH_PEFT = CASES | {
    "mla": MLA,
    "ranks of layers": "adapter.ranks={wk:3,blocks.1.*:5,w_up:2}",
}


def built(options: str, *, moved: bool = True) -> Any:
    """A config, and its model in fp64."""
    words = f"{LORA} model.activation=silu run.device=cpu {options}".split()
    config = resolved([*SMALL, *words]).config
    model = build_model(config, torch.device("cpu"), Ranks(), torch.float64)
    if moved:
        move(model)
    return config, model


@torch.no_grad()
def move(model: Any) -> None:
    """Have adapters be no more what they begin as."""
    generator = torch.Generator().manual_seed(1)
    for name, values in model.named_parameters():
        if is_added(name):
            values.add_(torch.randn(values.shape, generator=generator, dtype=values.dtype) / 9)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_layer_is_its_formula(options: str) -> None:
    """LoRA: W x + s B A x + bias; DoRA: m * (W + s B A) x / |W + s B A| + bias, of each row."""
    config, model = built(options)
    for layer in (model.blocks["0"].attention.wk, model.blocks["1"].feed_forward.w_down):
        own: dict[str, Any] = {n: v.detach().numpy() for n, v in layer.named_parameters()}
        a, b = own["lora_a"], own["lora_b"]
        rank = len(a)
        assert rank == (3 if layer is model.blocks["0"].attention.wk else 4)
        scale = 6 / rank**0.5 if config.adapter.rank_stabilized else 6 / rank
        whole = own["weight"] + scale * (b @ a)
        if config.adapter.dora:
            whole *= (own["lora_magnitude"] / np.linalg.norm(whole, axis=1))[:, None]
        x = np.random.default_rng(0).normal(size=(2, 5, a.shape[1]))
        expected = x @ whole.T + own.get("bias", 0.0)
        assert np.allclose(layer(torch.from_numpy(x)).detach(), expected, atol=1e-12)
        magnitude = torch.from_numpy(own["lora_magnitude"]) if config.adapter.dora else None
        pair = torch.from_numpy(a), torch.from_numpy(b)
        weight = torch.from_numpy(own["weight"])
        found = merged_weight(weight, *pair, magnitude, role="matrix", scale=scale)
        assert np.allclose(found, whole, atol=1e-12)


@pytest.mark.parametrize("options", ["", "adapter.dora=true", "adapter=qlora"])
def test_dropout_is_of_what_a_sees_in_training_alone(options: str) -> None:
    """With an A and a B that are the identity, what is added is what A has seen: each feature
    times 1 / (1 - rate), or 0; the base sees all of them.
    """
    sizes = "model.dim=128 model.n_heads=4 adapter.rank=128 adapter.alpha=128"
    _, model = built(f"{sizes} {options} adapter.dropout=0.25", moved=False)
    layer = model.blocks["0"].attention.wq
    model.noise.bits = torch.arange(600, dtype=torch.int32).view(2, 300) * 40503
    x = torch.randn(2, 300, 128, dtype=torch.float64)
    with torch.no_grad():
        base = layer(x)
        layer.lora_a.copy_(torch.eye(128))
        layer.lora_b.copy_(torch.eye(128))
        lengths = layer.lengthened() if "dora" in options else 1.0
        seen = layer.train()(x) / lengths - base
        whole = layer.eval()(x) / lengths - base
    assert torch.allclose(whole, x, atol=1e-9)
    gone = seen.abs() < 1e-9
    assert torch.allclose(seen, torch.where(gone, 0, x / 0.75), atol=1e-9)
    assert 0.24 < gone.double().mean() < 0.26
    assert not torch.equal(gone[0], gone[1])


@pytest.mark.parametrize(
    "options",
    [
        "adapter.target_modules=[all,head,embedding]",
        "adapter.target_modules=[all] adapter.dora=true",
    ],
    ids=["lora", "dora"],
)
def test_a_model_is_its_base_without_its_adapters_and_with_them_one_of_merged_weights(
    options: str,
) -> None:
    """Experts too; and magnitudes begin as what changes nothing."""
    config, model = built(
        f"{options} model.tie_embeddings=false model.moe.num_experts=4", moved=False
    )
    plain = make_model(model.section).double()
    own = {n: v for n, v in model.state_dict().items() if not is_added(n)}
    plain.load_state_dict(own)
    assert torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-12)
    move(model)
    with adapters_off(model):
        assert torch.equal(model(TOKENS), plain(TOKENS))
    assert not torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-2)
    whole = dict(own)
    for one in config.model.tensors():
        if rank := config.adapter.rank_of(one):
            added = (
                model.state_dict().get(adapter_name(one, which)) for which in (A, B, MAGNITUDE)
            )
            how = {"role": one.role, "scale": config.adapter.scale(rank)}
            whole[one.name] = merged_weight(own[one.name], *added, **how)
    plain.load_state_dict(whole)
    assert torch.allclose(model(TOKENS), plain(TOKENS), atol=1e-10)
    assert all(p.requires_grad == is_added(name) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        "model.tie_embeddings=false",
        "adapter.modules_to_save=[embedding,wq] model.tie_embeddings=true",
    ],
)
def test_flops_of_a_token_are_those_counted(options: str) -> None:
    """Frozen weights have no gradient; of the first block nothing that enters it has one."""
    config, model = built(f"{options} model.sdpa_backend=math train.seq_len=16 model.n_kv_heads=4")
    with FlopCounterMode(display=False) as counter:
        model(TOKENS.view(3, 16)).sum().backward()
    spared = 0
    if not config.adapter.modules_to_save:
        one = model.blocks["0"].attention
        spared = sum(w.weight.numel() + w.lora_a.numel() for w in (one.wq, one.wk, one.wv))
    expected = flops_per_token(config) - 2 * spared  # type: ignore[operator]
    assert counter.get_total_flops() == expected * TOKENS.numel()


@pytest.mark.ci("plain")
@pytest.mark.parametrize("options", WITH_PEFT.values(), ids=WITH_PEFT)
def test_logits_gradients_and_merged_weights_are_those_of_peft(options: str) -> None:
    from peft import LoraConfig, get_peft_model

    config, model = built(options)
    plain: Any = make_model(config.model).double()
    plain.load_state_dict({n: v for n, v in model.state_dict().items() if not is_added(n)})
    ranks = {
        adapter_prefix(one): rank
        for one in config.model.tensors()
        if (rank := config.adapter.rank_of(one))
    }
    theirs: Any = get_peft_model(
        plain,
        LoraConfig(
            r=4,
            lora_alpha=6,
            target_modules=list(ranks),
            rank_pattern=ranks,
            use_rslora=config.adapter.rank_stabilized,
            use_dora=config.adapter.dora,
        ),
        autocast_adapter_dtype=False,
    )
    pairs: dict[str, tuple[Tensor, nn.Parameter]] = {}
    for name, values in model.named_parameters():
        place, _, kind = name.rpartition(".")
        if kind in ("lora_a", "lora_b", "lora_magnitude"):
            layer = theirs.get_submodule(f"base_model.model.{place}")
            which = {"lora_a": "lora_A", "lora_b": "lora_B"}.get(kind, "lora_magnitude_vector")
            pairs[name] = values, getattr(layer, which)["default"].weight
    assert len(pairs) == len(ranks) * (3 if config.adapter.dora else 2)
    with torch.no_grad():
        for ours, other in pairs.values():
            other.copy_(ours)
    made, expected = model(TOKENS), theirs(TOKENS)
    assert torch.allclose(made, expected, atol=1e-6)
    for logits in (made, expected):
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()).backward()
    for name, (ours, other) in pairs.items():
        assert torch.allclose(ours.grad, other.grad, atol=1e-6), name  # type: ignore[arg-type]
        assert other.grad.abs().max() > 1e-5  # type: ignore[union-attr]
    whole = theirs.merge_and_unload().state_dict()
    for name, _ in model.named_parameters():
        layer = model.get_submodule(name.rpartition(".")[0])
        if name.endswith(".weight") and hasattr(layer, "lora_a"):
            assert torch.allclose(layer.adapted_weight(), whole[name], atol=1e-6), name
