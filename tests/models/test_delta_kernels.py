"""Gated delta nets by flash-linear-attention's kernels, which need a GPU: a stand-in with their
signature computes with the plain rule, here and in compiled blocks.
"""

from __future__ import annotations

import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from moe_helpers import furthest, train_step
from torch import Tensor
from torch._dynamo.utils import counters

from forge.config.model.mixers import flash_linear
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet as GatedDeltaNetConfig
from forge.models import gated_delta_net
from forge.models.delta_rule import DeltaInputs, chunked
from forge.models.gated_delta_net import GatedDeltaNet
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.modules import compile_blocks

SEQ = 24


class Kernels:
    """`chunk_gated_delta_rule` as fla-core 0.6 has it, by torch; notes what it is given."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    @torch.compiler.disable
    def chunk_gated_delta_rule(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        scale: float | None = None,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False,
        state_v_first: bool = False,
        cu_seqlens: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        switches = (use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval)
        assert not any((*switches, state_v_first, scale, options))
        assert cu_seqlens is None
        assert q.dtype == k.dtype == v.dtype
        (batch, seq, key_heads, width), heads = k.shape, v.shape[2]
        assert q.shape == k.shape
        assert heads % key_heads == 0
        assert g.shape == beta.shape == (batch, seq, heads)
        assert initial_state is None or initial_state.shape == (batch, heads, width, v.shape[-1])
        self.calls.append({"dtype": q.dtype, "state": initial_state})
        output, last = chunked(DeltaInputs(q, k, v, g, beta), 8, initial_state)
        return output.to(q.dtype), last if output_final_state else None


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The stand-in, where forge looks for the package."""
    stand_in = Kernels()
    package = ModuleType("fla.ops.gated_delta_rule")
    package.chunk_gated_delta_rule = stand_in.chunk_gated_delta_rule  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        module = SimpleNamespace(__spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return stand_in


def mixer(kernel: str) -> GatedDeltaNetConfig:
    return GatedDeltaNetConfig(
        gdn_key_head_dim=6,
        gdn_value_head_dim=10,
        gdn_num_key_heads=2,
        gdn_num_value_heads=4,
        gdn_chunk_size=5,
        gdn_kernel=kernel,
    )


@pytest.mark.parametrize("packed", [False, True], ids="packed={}".format)
def test_the_kernels_are_given_what_they_take(kernels, small_section, packed) -> None:
    """In 16 bits they are given 16 bits, and a state in fp32."""
    layers = [GatedDeltaNet(small_section(mixer=mixer(kernel))) for kernel in ("torch", "fla")]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(2, SEQ, 32, generator=torch.Generator().manual_seed(1))
    places = torch.arange(SEQ).expand(2, SEQ) % 7 if packed else None
    plain, found = (layer(x, None, None, places) for layer in layers)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
    layers[1].bfloat16()(x.bfloat16(), None, None, places)
    assert [call["dtype"] for call in kernels.calls] == [torch.float32, torch.bfloat16]
    assert all(call["state"].dtype == torch.float32 for call in kernels.calls)


@pytest.mark.parametrize("mode", ["none", "full", "selective"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_model_trains_by_the_kernels_as_by_torch(kernels, small_decoder, mode, compiled) -> None:
    """Compiled blocks are one graph each: a break is an error, and none is counted."""
    kinds = ("torch", "fla")
    plain, model = (small_decoder(mixer=mixer(kernel)).double() for kernel in kinds)
    texts = [torch.arange(2 * SEQ).view(2, SEQ) * step % 61 for step in (7, 11)]
    recompute_blocks(model, mode)
    if compiled:
        torch._dynamo.reset()
        counters.clear()
        compile_blocks(model, "aot_eager")
    expected, found = train_step(plain, texts), train_step(model, texts)
    assert furthest(found.gradients, expected.gradients) < 1e-10
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-10, atol=1e-10)
    assert not counters["graph_break"]
    # Forward, and once more in backward; recomputed, once more before it.
    passes = 2 if mode == "none" else 3
    assert len(kernels.calls) == len(texts) * 2 * passes


@pytest.mark.parametrize(
    ("installed", "hopper", "reason"),
    [
        ({}, False, "they are not installed"),
        ({"fla-core": "0.4.2"}, False, "fla-core is 0.4.2, and must be 0.5 or later"),
        ({"fla-core": "0.5.0", "triton": "3.6.0"}, False, ""),
        ({"fla-core": "0.6.0", "triton": "3.6.0"}, True, "on Hopper with Triton 3.4 to 3.7.0"),
        ({"fla-core": "0.5.1", "triton": "3.7.1"}, True, "fla-core must be 0.6 or later"),
        ({"fla-core": "0.6.0", "triton": "3.7.1"}, True, ""),
        ({"fla-core": "0.6.1rc1", "triton": "3.8.0+git1"}, True, ""),
        ({"fla-core": "0.6.0", "triton": "3.6.0", "tilelang": "0.1"}, True, ""),
    ],
    ids=str,
)
def test_releases_with_other_numbers_are_not_used(monkeypatch, installed, hopper, reason) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    def find_spec(name: str) -> Any:
        return installed.get("fla-core" if name == "fla" else name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(flash_linear.importlib.util, "find_spec", find_spec)
    lacking = flash_linear.kernels_lack(hopper)
    assert reason in lacking
    assert bool(reason) == bool(lacking)


def test_on_a_gpu_that_has_them_wrong_auto_leaves_them_and_fla_says_why(
    monkeypatch, small_section
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(
        gated_delta_net, "kernels_lack", lambda hopper=False: "they are wrong" if hopper else ""
    )
    with pytest.warns(UserWarning, match=r"auto is torch's chunks: they are wrong"):
        layer = GatedDeltaNet(small_section(mixer=mixer("auto")))
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda"), element_size=lambda: 2)
    assert not layer.by_kernel(on_gpu)
    with pytest.raises(ValueError, match=r"be used: they are wrong; mixer\.gdn_kernel=torch"):
        GatedDeltaNet(small_section(mixer=mixer("fla")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert GatedDeltaNet(small_section(mixer=mixer("auto"))).by_kernel(on_gpu)
