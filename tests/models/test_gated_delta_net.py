"""Gated delta nets: against transformers' Qwen3-Next, and their forms against one another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from test_transformers_parity import Pick, randomise
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet as GatedDeltaNetConfig
from forge.models.cache import LayerCache
from forge.models.decoder import Decoder
from forge.models.delta_rule import DeltaInputs, chunked, l2_norm, recurrent
from forge.models.gated_delta_net import GatedDeltaNet, delta_rule, delta_rule_backward
from forge.models.init import init_weights

DIM, SEQ = 32, 43
KEY_HEADS, HEADS, KEY, VALUE = 2, 6, 10, 12


def mixer(**options: Any) -> GatedDeltaNetConfig:
    sizes = {"gdn_key_head_dim": KEY, "gdn_value_head_dim": VALUE, "gdn_chunk_size": 8}
    heads = {"gdn_num_key_heads": KEY_HEADS, "gdn_num_value_heads": HEADS}
    return GatedDeltaNetConfig(**(sizes | heads | options))


def section(**options: Any) -> DecoderConfig:
    own = mixer(**options)
    return DecoderConfig(dim=DIM, n_heads=4, max_seq_len=SEQ, norm_eps=1e-6, mixer=own)


def tensors_of(peer: nn.Module, pick: Pick) -> dict[str, Tensor]:
    """The peer's weights (or gradients) under our names: its matrices have the rows of one key head
    after those of another.
    """
    groups = HEADS // KEY_HEADS
    found = {"wo.weight": pick(peer.out_proj.weight), "norm.weight": pick(peer.norm.weight)}
    widths = (KEY, KEY, groups * VALUE, groups * VALUE)
    rows = pick(peer.in_proj_qkvz.weight).unflatten(0, (KEY_HEADS, -1)).split(widths, 1)
    found |= {f"w{n}.weight": each.flatten(0, 1) for n, each in zip("qkvz", rows, strict=True)}
    rows = pick(peer.in_proj_ba.weight).unflatten(0, (KEY_HEADS, -1)).split((groups, groups), 1)
    found |= {f"w{n}.weight": each.flatten(0, 1) for n, each in zip("ba", rows, strict=True)}
    widths = (KEY_HEADS * KEY, KEY_HEADS * KEY, HEADS * VALUE)
    parts = pick(peer.conv1d.weight).squeeze(1).split(widths)
    found |= {f"conv_{name}": each for name, each in zip("qkv", parts, strict=True)}
    return found | {"a_log": pick(peer.A_log), "dt_bias": pick(peer.dt_bias)}


@pytest.mark.parametrize("seq", [SEQ, 64, 8, 1], ids="seq={}".format)
def test_outputs_and_gradients_are_those_of_qwen3_next(seq) -> None:
    chosen = Qwen3NextConfig(
        hidden_size=DIM,
        linear_num_key_heads=KEY_HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=KEY,
        linear_value_head_dim=VALUE,
        num_hidden_layers=4,
    )
    peer = Qwen3NextGatedDeltaNet(chosen, 0)
    randomise(peer)
    ours = GatedDeltaNet(section())
    ours.load_state_dict(tensors_of(peer, lambda parameter: parameter.detach()))
    x, to = torch.randn(2, 2, seq, DIM, generator=torch.Generator().manual_seed(1))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    y, expected = ours(inputs[0]), peer(inputs[1])
    assert expected.std() > 0.1
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for each in (y, expected):
        (each * to).sum().backward()
    gradients = tensors_of(peer, lambda parameter: parameter.grad) | {"x": inputs[1].grad}
    for name, parameter in [*ours.named_parameters(), ("x", inputs[0])]:
        if seq > 1 or name not in ("a_log", "dt_bias", "wa.weight"):
            assert gradients[name].norm() > 0, name
        assert (parameter.grad - gradients[name]).norm() <= 1e-5 * gradients[name].norm(), name


def fed(seq: int, *, begins: bool = False, seed: int = 0) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        made = torch.randn(2, seq, *shape, generator=generator, dtype=torch.float64)
        return made.requires_grad_()

    starts = torch.zeros(2, seq, dtype=torch.bool)
    for row, places in enumerate(([0, 1, 5, 6, 7, 8, 23], [0, 16, 29, 30])):
        starts[row, [place for place in places if place < seq]] = True
    return DeltaInputs(
        q=drawn(KEY_HEADS, KEY),
        k=drawn(KEY_HEADS, KEY) * 0.3,
        v=drawn(HEADS, VALUE),
        decay=-drawn(HEADS).exp(),
        beta=drawn(HEADS).sigmoid(),
        begins=starts if begins else None,
    )


@pytest.mark.parametrize("begins", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("size", [1, 5, 8, 64])
@pytest.mark.parametrize("given", [False, True], ids=["empty", "state"])
def test_a_chunk_at_a_time_equals_a_token_at_a_time(size, begins, given) -> None:
    """Outputs, the last state and all gradients, in fp64."""
    generator, found = torch.Generator().manual_seed(9), []
    to, after, state = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, SEQ, HEADS, VALUE), *[(2, HEADS, KEY, VALUE)] * 2)
    )
    for chunk in (0, size):
        read, first = fed(SEQ, begins=begins), state.clone().requires_grad_() if given else None
        leaves = [each for each in (*read, first) if each is not None and each.requires_grad]
        made, last = chunked(read, chunk, first) if chunk else recurrent(read, first)
        total = (made * to).sum() + (last * after).sum()
        found.append([made, last, *torch.autograd.grad(total, leaves, allow_unused=True)])
    for one, other in zip(*found, strict=True):
        if one is None or (begins and given and one.norm() == 0):
            assert other is None or other.norm() == 0
            continue
        assert one.norm() > 0
        assert (one - other).norm() <= 1e-10 * one.norm()


@pytest.mark.parametrize("pieces", [[1] * SEQ, [20, *[1] * 23], [2, 1, 17, 8, 15]], ids=len)
@torch.no_grad()
def test_a_text_in_pieces_is_read_as_the_whole(pieces) -> None:
    """In fp64, with pieces shorter than the convolutions see."""
    layer = GatedDeltaNet(section()).double()
    randomise(layer)
    x = torch.randn(2, SEQ, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cache = LayerCache(SEQ)
    made = [layer(part, None, cache) for part in x.split(pieces, 1)]
    assert cache.length == SEQ
    torch.testing.assert_close(torch.cat(made, 1), layer(x), rtol=1e-10, atol=1e-12)
    sizes = [tuple(each.shape) for each in cache.held]
    keys, values = KEY_HEADS * KEY, HEADS * VALUE
    assert sizes == [(2, 3, keys), (2, 3, keys), (2, 3, values), (2, HEADS, KEY, VALUE)]
    with pytest.raises(ValueError, match="44 tokens in a cache for 43"):
        layer(x[:, :1], None, cache)


def test_the_state_is_fp32_in_16_bits() -> None:
    layer, cache = GatedDeltaNet(section()).to(torch.bfloat16), LayerCache(SEQ)
    with torch.no_grad():
        y = layer(torch.randn(2, 5, DIM, dtype=torch.bfloat16), None, cache)
    assert y.dtype == cache.held[0].dtype == torch.bfloat16
    assert cache.held[-1].dtype == torch.float32


def test_decays_begin_as_those_of_transformers(small_section) -> None:
    """The logarithm of numbers drawn evenly from 0.01 to 16, whatever their number is."""
    own = mixer(gdn_num_key_heads=2, gdn_num_value_heads=4000, gdn_value_head_dim=1)
    model = Decoder(small_section(n_layers=1, mixer=own))
    init_weights(model, 3)
    layer: Any = model.blocks["0"].attention
    drawn = layer.a_log.exp().detach()
    assert 0.01 <= drawn.min() < 0.1
    assert 15.9 < drawn.max() <= 16
    assert abs(drawn.mean() - 8.005) < 5 * 16 / 12**0.5 / 4000**0.5
    assert torch.all(layer.dt_bias == 1)
    assert torch.all(layer.norm.weight == 1)
    assert abs(layer.conv_v.std() / 0.02 - 1) < 0.05


def test_flops_are_those_counted_and_those_of_the_solution(small_section) -> None:
    """The counter sees products of matrices: neither of the two solutions of triangles, forward and
    backward, and all of the product that the gradient of the triangle is half of. The empty state
    that the first chunk multiplies has no gradient, nor has what the last one leaves.
    """
    chosen = small_section(mixer=mixer(), max_seq_len=24)
    text = torch.arange(24)[None]
    with FlopCounterMode(display=False) as counter:
        Decoder(chosen)(text).sum().backward()
    triangle = HEADS * 8 * (KEY + VALUE)  # of a token: 2 * 8 / 2 of each number that is solved for
    first = last = 2 * 2 * 8 * HEADS * KEY * VALUE
    unseen = 24 * (2 * triangle - triangle) + first + last
    counted = counter.get_total_flops() + chosen.n_layers * unseen
    assert counted == 24 * chosen.flops_per_token(24)


def rule_inputs(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Inputs of the operator: 2 rows of 70 tokens, 2 key heads, 4 heads."""
    drawn = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn, dtype=dtype)

    q, k = (l2_norm(draw(2, 70, 2, 8)) for _ in range(2))
    decay, beta = -draw(2, 70, 4).square(), draw(2, 70, 4).sigmoid()
    return [q, k, draw(2, 70, 4, 6), decay, beta, draw(2, 4, 8, 6)]


def test_the_operator_is_registered_as_torch_demands():
    """Schema, fake function, autograd and tracing, by torch's own checks."""
    inputs = [values.requires_grad_() for values in rule_inputs()]
    torch.library.opcheck(delta_rule, tuple(inputs))
    output, last = (values.detach() for values in delta_rule(*inputs))
    detached = [values.detach() for values in inputs]
    torch.library.opcheck(delta_rule_backward, (output, last, detached))


def test_the_operator_has_the_values_and_gradients_of_the_recurrence():
    ours, theirs = ([x.requires_grad_() for x in rule_inputs()] for _ in range(2))
    results = delta_rule(*ours), recurrent(DeltaInputs(*theirs[:5]), theirs[5])
    weights = [torch.randn_like(values) for values in results[0]]
    for inputs, outputs in ((ours, results[0]), (theirs, results[1])):
        total = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
        total.backward()
        assert all(values.grad is not None for values in inputs)
    gradients = [(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True)]
    for a, b in [*zip(*results, strict=True), *gradients]:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_compiled_block_is_one_graph_with_the_operator():
    """Forward and backward, by the compiler's own tracer."""
    layer = GatedDeltaNet(section(gdn_kernel="fla"))
    randomise(layer)
    x = torch.randn(2, SEQ, DIM, generator=torch.Generator().manual_seed(1))
    names: list[str] = []

    def note(graph: Any, _: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=note))
    gradients = []
    for act in (layer, compiled):
        layer.zero_grad()
        act(x).square().sum().backward()
        gradients.append([p.grad for p in layer.parameters()])
    assert "forge.delta_rule.default" in names
    assert "forge.delta_rule_backward.default" in names
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
