"""The layer of experts against its formulas, written out token by token."""

from __future__ import annotations

import copy
import math
from collections import Counter

import pytest
import torch
from moe_helpers import (
    BATCH,
    DIM,
    SEQ,
    decoder,
    expert,
    furthest,
    gradients,
    layer,
    section,
    states,
    tokens,
    train_step,
    written_out,
)

from forge.models.decoder import Decoder
from forge.models.feed_forward import FeedForward
from forge.models.moe import MoE

KINDS = [
    {},
    {"top_k": 1, "norm_topk_prob": False},
    {"top_k": 3, "router": "sigmoid_topk", "routed_scaling_factor": 2.5},
    {"router": "sigmoid_topk", "norm_topk_prob": False},
    {"shared_experts": 2},
    {"top_k": 3, "n_routing_groups": 4, "topk_routing_group": 2},
    {"top_k": 8},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_outputs_and_gradients_are_those_of_the_formula(options) -> None:
    moe, x = layer(aux_loss_weight=0.0, **options), states()
    again, same = copy.deepcopy(moe), states()
    wanted = torch.randn(BATCH, SEQ, DIM, dtype=torch.float64)
    y, expected = moe(x), written_out(again, same)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    (y * wanted).sum().backward()
    (expected * wanted).sum().backward()
    assert x.grad is not None
    assert same.grad is not None
    assert furthest({"x": x.grad, **gradients(moe)}, {"x": same.grad, **gradients(again)}) < 1e-12


@pytest.mark.parametrize("gated", [True, False])
def test_a_single_expert_is_a_feed_forward_layer(gated) -> None:
    model = {"gated_mlp": gated, "activation": "gelu"}
    made = Decoder(section(model=model, num_experts=1, top_k=1, ffn_hidden_dim=48)).double()
    moe, dense = made.blocks["0"].feed_forward, FeedForward(section(model=model)).double()
    for name in ("w_gate", "w_up", "w_down") if gated else ("w_up", "w_down"):
        getattr(dense, name).weight.data.copy_(getattr(moe.experts, name)[0])
    torch.testing.assert_close(moe(states()), dense(states()), rtol=1e-12, atol=1e-12)


def test_the_bias_chooses_and_does_not_weigh() -> None:
    router, x = layer(router="sigmoid_topk", norm_topk_prob=False).router, states().flatten(0, 1)
    scores = torch.sigmoid(x @ router.weight.T)
    router.selection_bias.zero_().index_fill_(0, torch.tensor([6]), 10.0)
    routed = router(x)
    assert (routed.experts[:, 0] == 6).all()
    torch.testing.assert_close(routed.weights, scores.gather(1, routed.experts), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["softmax_topk", "sigmoid_topk"])
def test_group_limited_choice_is_that_of_a_loop(kind) -> None:
    groups = {"n_routing_groups": 4, "topk_routing_group": 2, "num_experts": 16}
    router, x = layer(top_k=3, router=kind, **groups).router, states().flatten(0, 1)
    logits = x @ router.weight.T
    scores = logits.softmax(-1) if kind == "softmax_topk" else logits.sigmoid()
    scores = scores + router.selection_bias
    chosen = router(x).experts
    for row, found in zip(scores.tolist(), chosen.tolist(), strict=True):
        groups = [sorted(row[start : start + 4], reverse=True) for start in range(0, 16, 4)]
        value = [sum(group[: 1 if kind == "softmax_topk" else 2]) for group in groups]
        open_groups = sorted(range(4), key=lambda g: -value[g])[:2]
        wanted = sorted((e for e in range(16) if e // 4 in open_groups), key=lambda e: -row[e])[:3]
        assert found == wanted
    assert (chosen != scores.topk(3).indices).any()


def test_layers_with_experts_are_those_the_config_says() -> None:
    def kinds(**moe) -> str:
        with torch.device("meta"):
            model = Decoder(section(model={"n_layers": 6}, **moe))
        sparse = [isinstance(block.feed_forward, MoE) for block in model.blocks.values()]
        assert sum(sparse) == model.section.n_moe_layers
        return "".join("e" if each else "d" for each in sparse)

    assert kinds() == "eeeeee"
    assert kinds(frequency=2) == "dedede"
    assert kinds(frequency=3, first_num_dense_layers=3) == "ddddde"
    assert kinds(first_num_dense_layers=2) == "ddeeee"
    assert kinds(num_experts=0) == "dddddd"


@pytest.mark.parametrize(
    "options", [{}, {"shared_experts": 1, "top_k": 3}, {"router": "sigmoid_topk"}], ids=str
)
@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
def test_kernels_are_equal(options, scope) -> None:
    """Grouped, looped and, with room for all, batched; logits and gradients, in fp32."""
    loop = train_step(decoder(kernel="loop", balance_scope=scope, **options), [tokens()])
    grouped = train_step(decoder(kernel="grouped", balance_scope=scope, **options), [tokens()])
    room = train_step(decoder(capacity_factor=8.0, balance_scope=scope, **options), [tokens()])
    for other in (grouped, room):
        torch.testing.assert_close(other.logits, loop.logits, rtol=1e-5, atol=1e-5)
        assert furthest(other.gradients, loop.gradients) < 1e-5
    assert room.report.means["moe/dropped"] == 0


@pytest.mark.parametrize("kernel", ["auto", "grouped", "loop"])
def test_a_rank_without_any_token_has_gradients_of_zero(kernel) -> None:
    """The kernel is not asked for no row at all; and FSDP waits for a gradient from every rank."""
    experts = layer(kernel=kernel, dtype=torch.float32).experts
    x = torch.empty(0, DIM, requires_grad=True)
    y = experts(x, torch.zeros(8, dtype=torch.int64))
    assert y.shape == (0, DIM)
    y.sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in experts.parameters())


def test_on_a_gpu_whose_grouped_kernel_is_wrong_it_is_not_taken(caplog) -> None:
    cases = [("auto", (9, 0), "auto"), ("auto", (10, 0), "loop"), ("grouped", (12, 0), "grouped")]
    for kernel, capability, chosen in cases:
        experts = layer(kernel=kernel).experts
        experts.choose_kernel(capability)
        assert experts.kernel == chosen
    assert [record.getMessage() for record in caplog.records] == [
        "model.moe.kernel=grouped gives experts without tokens a wrong gradient on this GPU; "
        "auto takes the loop"
    ]


def test_auto_takes_the_grouped_kernel_where_there_is_one(monkeypatch) -> None:
    used = []

    def record(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        used.append(x.dtype)
        return x.new_zeros(len(x), weight.shape[2])

    monkeypatch.setattr("forge.models.experts.grouped_mm", record)
    for dtype in (torch.float32, torch.float64):
        layer(kernel="auto", dtype=dtype)(states(dtype=dtype))
    assert set(used) == {torch.float32}


def test_with_experts_that_nobody_chooses() -> None:
    for kernel in ("loop", "grouped"):
        model = decoder(kernel=kernel)
        for block in model.blocks.values():
            block.feed_forward.router.selection_bias[3:] = -100.0
        model(tokens()).square().mean().backward()
        gradient = model.blocks["0"].feed_forward.experts.w_up.grad
        assert gradient[:3].abs().amax((1, 2)).min() > 0
        assert gradient[3:].abs().max() == 0


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
@pytest.mark.parametrize("factor", [0.25, 1.0, 1.25])
def test_capacity_keeps_the_first_of_a_scope_and_drops_the_rest(scope, factor) -> None:
    """Counted by hand: ceil(factor * tokens * top_k / experts), as any choice, in order."""
    options = {"capacity_factor": factor, "balance_scope": scope}
    moe, x = layer(**options, top_k=3, aux_loss_weight=0.0), states()
    moe.router.selection_bias[2] = 0.5
    routed = moe.router(x.flatten(0, 1))
    size = math.ceil(factor * (SEQ if scope == "sequence" else BATCH * SEQ) * 3 / 8)
    taken, dropped, rows = Counter(), 0, []
    routes = zip(routed.experts.tolist(), routed.weights, strict=True)
    for number, (choice, weights) in enumerate(routes):
        row = torch.zeros(DIM, dtype=torch.float64)
        for one, weight in zip(choice, weights, strict=True):
            key = (number // SEQ if scope == "sequence" else 0, one)
            taken[key] += 1
            if taken[key] <= size:
                row = row + weight * expert(moe, one, x.flatten(0, 1)[number])
            else:
                dropped += 1
        rows.append(row)
    expected = torch.stack(rows).view_as(x)
    assert dropped > 0
    wanted = torch.randn_like(x)
    (expected * wanted).sum().backward()
    by_hand, _ = {"x": x.grad, **gradients(moe)}, moe.zero_grad()
    x.grad = None
    y = moe(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    (y * wanted).sum().backward()
    assert x.grad is not None
    assert furthest({"x": x.grad, **gradients(moe)}, by_hand) < 1e-12
    assert moe.record.sums[2] == dropped
    moe.eval()
    torch.testing.assert_close(moe(x), written_out(moe, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"capacity_factor": 0.5}, {"n_routing_groups": 2}], ids=str
)
def test_no_token_sees_a_later_one(options) -> None:
    model, text = decoder(dtype=torch.float64, **options), tokens()
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 61
    difference = (model(text) - model(changed)).abs().amax(-1)
    # Not 0: products of other numbers of rows round otherwise.
    assert difference[:, :9].max() < 1e-12
    assert difference[:, 9].min() > 1e-3


def test_with_a_cache_it_is_what_it_is_without() -> None:
    model, text = decoder(capacity_factor=0.5).eval(), tokens(1)
    cache = model.new_cache()
    with torch.no_grad():
        pieces = [model(text[:, :7], cache=cache)]
        pieces += [model(text[:, i : i + 1], cache=cache) for i in range(7, SEQ)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(text), rtol=1e-5, atol=1e-5)


def test_with_bf16_weights_the_router_multiplies_in_fp32_by_option() -> None:
    chosen = {}
    for precise in (True, False):
        moe = layer(float32_gate_logits=precise, dtype=torch.bfloat16)
        x = states(dtype=torch.bfloat16)
        y, chosen[precise] = moe(x), moe.router(x.flatten(0, 1))
        plain = written_out(moe.float(), x.float())
        assert (y.dtype, chosen[precise].weights.dtype) == (torch.bfloat16, torch.float32)
        if precise:
            assert 1e-4 < (y - plain).norm() / plain.norm() < 0.03
    x = states(dtype=torch.bfloat16).float().flatten(0, 1)
    exact = layer(dtype=torch.bfloat16).float().router(x).logits
    assert torch.equal(chosen[True].logits, exact)
    assert 1e-4 < (chosen[False].logits - exact).abs().max() < 0.1


def test_built_where_nothing_has_memory_its_buffers_begin_at_zero() -> None:
    with torch.device("meta"):
        model = Decoder(section())
    model.to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.fill_(7)
    model.reset_buffers()
    for block in model.blocks.values():
        assert not any(buffer.any() for buffer in block.feed_forward.buffers())
    kept = [name for name in model.state_dict() if "bias" in name or "record" in name]
    assert kept == [f"blocks.{i}.feed_forward.router.selection_bias" for i in range(2)]
