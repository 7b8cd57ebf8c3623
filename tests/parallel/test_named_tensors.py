"""What blocks keep by name: gradients, FLOPs that are repeated, and host memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.refusing import resolved
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from forge.config.recompute import OFFLOADED, SAVED, Policy, places_of
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.host_memory import Host, InHost
from forge.parallel.modules import compile_blocks
from forge.planning.activations import Activations, Stage

SHAPE = ["model.dim=32", "model.n_layers=2", "model.n_heads=4", "model.ffn_hidden_dim=48"]
SHAPE += ["model.vocab_size=300", "tokenizer.vocab_size=300", "model.max_seq_len=32"]
SHAPE += ["train.batch_size=2", "train.seq_len=16", "run.device=cpu", "precision=fp32"]
SHAPE += ["train.compile_model=false", "model.init_std=0.2"]
MLA = ["+mixer@model.mixer=mla", "model.mixer.kv_lora_rank=20", "model.mixer.v_head_dim=12"]
MLA += ["model.mixer.qk_nope_head_dim=8", "model.mixer.qk_rope_head_dim=4"]
MLA += ["model.mixer.q_lora_rank=12"]
DELTA = ["+mixer@model.mixer=gated_delta_net", "model.mixer.gdn_key_head_dim=8"]
DELTA += ["model.mixer.gdn_num_key_heads=2", "model.mixer.gdn_num_value_heads=4"]
DELTA += ["model.mixer.gdn_value_head_dim=8", "model.mixer.gdn_chunk_size=8"]
MOE = ["model.moe.num_experts=4", "model.moe.ffn_hidden_dim=24"]
SHAPES = {
    "llama": ["model.n_kv_heads=2"],
    "gpt2": ["model.activation=gelu", "model.bias=true", "model.norm_placement=both"],
    "mla": [*MLA],
    "delta": [*DELTA],
    "moe": [*MOE, "model.moe.shared_experts=1", "model.moe.shared_expert_gate=true"],
    "capacity": [*MOE, "model.moe.capacity_factor=1.0", "model.attention_output_gate=true"],
}
IN_CI = ("capacity",)


def nightly(shape: str):
    return shape if shape in IN_CI else pytest.param(shape, marks=pytest.mark.nightly)


HERE = Stage(layers=range(2), first=True, last=True)


def composed(shape: str, *more: str) -> Config:
    return resolved([*SHAPE, *SHAPES[shape], *more]).config


def made(config: Config) -> Decoder:
    model = Decoder(config.model)  # type: ignore[arg-type]
    init_weights(model, 0)
    return model.train()


def policies() -> list[Policy]:
    """MaxText's, and each name alone, half of the blocks."""
    each = [Policy(name=name, places=places_of(name), layers={}) for name in {**SAVED, **OFFLOADED}]
    names = SAVED["selective"]
    return each + [
        Policy(name="custom", places={name: place, "router": "device"}, layers={name: 1})
        for name, place in zip(names, ["device", "offload"] * len(names), strict=False)
    ]


def in_host(model: Decoder) -> None:
    """However small it is."""
    for module in model.modules():
        if isinstance(host := getattr(module, "host", None), Host):
            host.smallest = 0


def gradients(model: Decoder) -> dict[str, torch.Tensor]:
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(0))
    model(tokens).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}  # type: ignore


@pytest.mark.parametrize("shape", [nightly(shape) for shape in SHAPES])
def test_gradients_have_the_same_bits_and_flops_are_those_that_are_said(shape: str) -> None:
    """Torch counts the products; what a policy repeats is what the components say of its names."""
    config = composed(shape)
    with counting() as once:
        expected = gradients(made(config))
    for policy in policies():
        model = made(config)
        recompute_blocks(model, policy)
        in_host(model)
        with counting() as counted:
            found = gradients(model)
        for name, reference in expected.items():
            assert torch.equal(found[name], reference), (policy, name)
        again = counted.get_total_flops() - once.get_total_flops()
        if shape != "delta":  # whose chunks repeat small products that are not estimated exactly
            tried = replace(config, train=Fixed(policy, config.train))
            activations = Activations(tried, config.model)  # type: ignore[arg-type]
            said = sum(block.again(places) for block, places in activations.places(HERE))
            assert again == pytest.approx(32 * said, rel=0.02), policy


def attention_flops(q, k, v, *_, out_shape=None, **__) -> int:
    """Of q: [batch, heads, seq, width] over v: [batch, heads, keys, width], given shapes."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def counting() -> FlopCounterMode:
    """Of what torch does not count by itself, too."""
    aten = torch.ops.aten
    kernels = {aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
    return FlopCounterMode(
        display=False, custom_mapping=kernels | {aten._grouped_mm: grouped_flops}
    )


def grouped_flops(x, weight, *_, out_shape=None, **__) -> int:
    return 2 * x[0] * x[1] * weight[-1]


class Fixed:
    """A train section with this policy."""

    def __init__(self, policy: Policy, section) -> None:
        self.policy, self.section = policy, section

    def __getattr__(self, name: str):
        return getattr(self.section, name)


@pytest.mark.ci("minimal_offloaded-aot_eager")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("policy", ["minimal", "minimal_offloaded"])
def test_compiled_blocks_keep_by_name_too(
    backend: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph, the plain gradients; to host memory go six products of each of two blocks, but not
    the last, which nobody reads again.
    """
    config = composed("llama")
    held, take = [], InHost.take

    def taken(self: InHost) -> torch.Tensor:
        held.append(self)
        return take(self)

    monkeypatch.setattr(InHost, "take", taken)
    expected, model = gradients(made(config)), made(config)
    recompute_blocks(model, policy)
    in_host(model)
    compile_blocks(model, backend)
    counters.clear()
    found = gradients(model)
    assert counters["stats"]["unique_graphs"] == 1
    products = [one for one in held if one.host.dim() == 2]  # not a generator's state
    assert len(products) == (12 if policy == "minimal_offloaded" else 0)
    bound = 1e-6 if backend == "aot_eager" else 1e-5  # its products are fused with what follows
    for name, reference in expected.items():
        atol = bound * reference.abs().max().item()
        torch.testing.assert_close(found[name], reference, rtol=bound, atol=atol)
