"""Hyper-connections against transformers' module, and against the plain model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.skips.hyper_connections import Streams, doubly_stochastic

SEQ = 13


def section(**options: Any) -> DecoderConfig:
    sizes: dict[str, Any] = {"dim": 24, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3}
    sizes |= {"vocab_size": 50, "max_seq_len": 40, "ffn_hidden_dim": 20, "init_std": 0.3}
    return DecoderConfig(**(sizes | options))


def model(**options: Any) -> Decoder:
    made = Decoder(section(**options)).double()
    init_weights(made, seed=3)
    return made.eval()


def stirred(**options: Any) -> Decoder:
    """A model whose streams have moved apart."""
    made, generator = model(**options), torch.Generator().manual_seed(4)
    for name, values in made.named_parameters():
        if "streams" in name:
            values.data.copy_(torch.randn(values.shape, generator=generator).double() * 0.5)
    return made


TOKENS = torch.randint(50, (2, SEQ), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("streams", "iterations"), [(4, 20), (3, 2), (2, 1)])
def test_a_joint_is_that_of_transformers(streams: int, iterations: int) -> None:
    """The layer's input, the streams after it, and all gradients, in fp32 as theirs."""
    config = DeepseekV4Config(
        hidden_size=24,
        hc_mult=streams,
        hc_sinkhorn_iters=iterations,
        hc_eps=1e-6,
        rms_norm_eps=1e-5,
    )
    theirs = DeepseekV4HyperConnection(config)
    ours = Streams(section(mhc_expansion_rate=streams, sinkhorn_iterations=iterations))
    generator = torch.Generator().manual_seed(1)
    names = {"weight": "fn", "base": "base", "scale": "scale"}
    for mine, other in names.items():
        values = torch.randn(theirs.get_parameter(other).shape, generator=generator)
        theirs.get_parameter(other).data.copy_(values)
        ours.get_parameter(mine).data.copy_(values)
    x = torch.randn(2, SEQ, streams, 24, generator=generator).requires_grad_()
    y = torch.randn(2, SEQ, 24, generator=generator).requires_grad_()
    to = torch.randn(2, SEQ, streams, 24, generator=generator)

    joint = ours(x.flatten(2))
    made = [joint.entering, joint.leave(x.flatten(2), y).unflatten(2, (streams, -1))]
    post, comb, collapsed = theirs(x)
    behind = torch.stack(
        [
            post[..., k, None] * y
            + sum(comb[..., j, k, None] * x[..., j, :] for j in range(streams))
            for k in range(streams)
        ],
        2,
    )
    results = []
    for module, (u, out) in ((ours, made), (theirs, [collapsed, behind])):
        total = (u * to[..., 0, :]).sum() + (out * to).sum()
        leaves: list[Tensor] = [x, y, *module.parameters()]
        order = [n for n, _ in module.named_parameters()]
        grads = torch.autograd.grad(total, leaves)
        found = dict(zip(["x", "y", *order], grads, strict=True))
        of_theirs = {v: k for k, v in names.items()}
        results.append(
            [u, out, *(found[n] for n in sorted(found, key=lambda n: of_theirs.get(n, n)))]
        )
    for one, other in zip(*results, strict=True):
        assert one.norm() > 0
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_without_scales_the_model_is_the_plain_one() -> None:
    """Outputs and gradients of the weights that both have; the streams stay equal."""
    plain, wide = model(norm_eps=1e-12), model(norm_eps=1e-12, mhc_expansion_rate=4)
    for name, values in wide.named_parameters():
        if name.endswith("streams.scale"):
            assert torch.equal(values, torch.full_like(values, 0.01))
            values.data.zero_()
    logits = [each(TOKENS) for each in (plain, wide)]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    for each in logits:
        each.square().sum().backward()
    others = dict(wide.named_parameters())
    for name, values in plain.named_parameters():
        other = others[name].grad
        assert values.grad is not None
        assert other is not None
        assert (values.grad - other).norm() < 1e-3 * values.grad.norm()


def test_streams_move_apart_and_matter() -> None:
    states: list[Tensor] = []
    made = stirred(mhc_expansion_rate=3)
    made.blocks["2"].register_forward_hook(lambda *args: states.append(args[-1]))
    logits = made(TOKENS)
    one, two, _ = states[0].chunk(3, -1)
    assert (one - two).norm() > 0.1 * one.norm()
    assert (logits - model()(TOKENS)).norm() > 0.1 * logits.norm()


def test_columns_sum_to_one_and_rows_nearly() -> None:
    logits = torch.randn(100, 4, 4, generator=torch.Generator().manual_seed(2))
    matrix = doubly_stochastic(0.1 * logits, 20)
    assert (matrix.sum(-2) - 1).abs().max() < 3e-6
    assert (matrix.sum(-1) - 1).abs().max() < 3e-6
    assert (doubly_stochastic(3 * logits, 20).sum(-2) - 1).abs().max() < 3e-6


def test_documents_and_a_cache() -> None:
    made = stirred(mhc_expansion_rate=2)
    documents = torch.repeat_interleave(torch.arange(2), torch.tensor([5, 8]))[None].expand(2, -1)
    together = made.hidden(TOKENS, documents=documents).split([5, 8], 1)
    for one, part in zip(together, TOKENS.split([5, 8], 1), strict=True):
        torch.testing.assert_close(one, made.hidden(part))
    cache = made.new_cache(SEQ)
    steps = [made(part, cache=cache) for part in TOKENS.split([4, *[1] * 9], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), made(TOKENS))


def test_table_and_flops() -> None:
    """Parameters as in the module, and FLOPs of the formula of one layer."""
    made = section(mhc_expansion_rate=4)
    table = {spec.name: spec.shape for spec in made.tensors()}
    assert table == {name: tuple(p.shape) for name, p in Decoder(made).named_parameters()}
    assert sum(made.params_by_part().values()) == made.num_params_estimate
    more = made.flops_per_token(SEQ) - section().flops_per_token(SEQ)
    assert more == 3 * 2 * (6 * 24 * 4 * 24 + 6 * 24 * 24)
