"""Auxiliary losses, counts and the selection bias: values, weights in the gradient, movement."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from moe_helpers import (
    BATCH,
    SEQ,
    decoder,
    furthest,
    gradients,
    layer,
    moe_layers,
    states,
    tokens,
    train_step,
)
from torch import Tensor

from forge.models.balance import Balance, bias_factor
from forge.models.moe import MoE
from forge.models.routing_losses import balance_loss
from forge.models.routing_record import SUMS
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.modules import compile_blocks

OFF = {"aux_loss_weight": 0.0}


def mean_terms(moe: MoE, x: Tensor, scope: str) -> tuple[Tensor, Tensor]:
    """Balance and z-loss as their papers write them, as sums of tokens * term, with loops."""
    balance, z = x.new_zeros(()), x.new_zeros(())
    for part in x.unbind() if scope == "sequence" else [x.flatten(0, 1)]:
        logits = part @ moe.router.weight.T
        scores = logits.softmax(-1) if moe.section.router == "softmax_topk" else logits.sigmoid()
        chosen = (scores + moe.router.selection_bias).topk(moe.section.top_k).indices
        shares = scores / scores.sum(-1, keepdim=True)
        term = x.new_zeros(())
        for number in range(moe.section.num_experts):
            load = (chosen == number).sum().double() / (len(part) * moe.section.top_k)
            term = term + load * shares[:, number].mean()
        balance = balance + len(part) * moe.section.num_experts * term
        z = z + sum(row.logsumexp(0) ** 2 for row in logits)
    return balance, z


@pytest.mark.parametrize("router", ["softmax_topk", "sigmoid_topk"])
@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({"aux_loss_weight": 0.3}, "sequence"),
        ({"aux_loss_weight": 0.3, "balance_scope": "micro_batch"}, "micro_batch"),
        ({**OFF, "sequence_aux_loss_weight": 0.3}, "sequence"),
        ({**OFF, "sequence_aux_loss_weight": 0.3, "balance_scope": "micro_batch"}, "sequence"),
        ({**OFF, "z_loss_weight": 0.3}, None),
    ],
    ids=str,
)
def test_an_auxiliary_loss_enters_the_gradient_once_with_its_weight(router, options, scope) -> None:
    """KempnerForge weights its sequence loss twice, and takes it over the micro-batch."""
    moe, x, scale = layer(router=router, **options), states(), 0.01
    plain, same = copy.deepcopy(moe), states()
    wanted = torch.randn_like(x)
    moe.record.scale.fill_(scale)
    (moe(x) * wanted).sum().backward()

    off = {**OFF, "sequence_aux_loss_weight": 0.0, "z_loss_weight": 0.0}
    plain.section = type(moe.section)(**{**vars(moe.section), **off})
    balance, z = mean_terms(plain, same, scope or "sequence")
    term = balance if scope else z
    ((plain(same) * wanted).sum() + 0.3 * scale * term).backward()
    assert x.grad is not None
    assert same.grad is not None
    assert furthest({"x": x.grad, **gradients(moe)}, {"x": same.grad, **gradients(plain)}) < 1e-12
    option = next(key for key, value in options.items() if value == 0.3)
    name = option.removesuffix("_weight").replace("z_loss", "router_z_loss")
    assert moe.record.sums[SUMS.index(name)].item() == pytest.approx(term.item(), rel=1e-12)


def test_hugging_faces_load_balancing_loss_is_top_k_times_ours() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    shares = logits.softmax(-1)
    counts = torch.bincount(shares.topk(2).indices.flatten(), minlength=8)[None]
    theirs = load_balancing_loss_func((logits,), num_experts=8, top_k=2)
    assert float(balance_loss(shares, counts)) / 40 * 2 == pytest.approx(float(theirs), rel=1e-6)


def test_the_weight_of_auxiliary_losses_does_not_depend_on_micro_batches() -> None:
    """Six sequences as one micro-batch, as three, and as two of unequal size: equal gradients."""
    text = tokens(6)
    losses = ("aux_loss_weight", "sequence_aux_loss_weight", "z_loss_weight")
    options = {**dict.fromkeys(losses, 0.1), "kernel": "loop", "dtype": torch.float64}
    whole = train_step(decoder(**options), [text])
    for sizes in ([2, 2, 2], [1, 5]):
        parts = train_step(decoder(**options), list(text.split(sizes)))
        assert furthest(parts.gradients, whole.gradients) < 1e-10
        torch.testing.assert_close(parts.report, whole.report, rtol=1e-5, atol=0)


def choices(model, text: Tensor) -> list[Tensor]:
    """How often each expert of each layer is chosen."""
    found = []

    def count(module, _, routed) -> None:
        found.append(torch.bincount(routed.experts.flatten(), minlength=8))

    hooks = [moe.router.register_forward_hook(count) for moe in moe_layers(model)]
    with torch.no_grad():
        model(text)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(
    ("mode", "compiled"), [("full", False), ("selective", False), ("full", True)]
)
@pytest.mark.parametrize("options", [{}, {"capacity_factor": 1.0, "gradient_scale": True}], ids=str)
def test_counts_and_gradients_under_recompute_and_compile(mode, compiled, options) -> None:
    """KempnerForge counts in each forward pass, and so again in recomputed ones."""
    options = {"bias_update_rate": 0.1, "z_loss_weight": 0.01, "shared_experts": 1, **options}
    texts, plain, model = [tokens(), tokens().flip(1)], decoder(**options), decoder(**options)
    chosen = [sum(each) for each in zip(*(choices(model, text) for text in texts), strict=True)]
    recompute_blocks(model, mode)
    if compiled:
        compile_blocks(model, "aot_eager")
    expected, found = train_step(plain, texts), train_step(model, texts)
    assert furthest(found.gradients, expected.gradients) < 1e-6
    torch.testing.assert_close(found.report, expected.report, rtol=1e-6, atol=1e-9)
    for one, other, counts in zip(moe_layers(model), moe_layers(plain), chosen, strict=True):
        assert torch.equal(one.record.counts, counts)
        assert torch.equal(one.router.selection_bias, other.router.selection_bias)


def test_the_bias_moves_once_a_step_by_the_counts_of_the_whole_step() -> None:
    """And so that what is chosen too often is chosen less: b_i += rate * sign(mean - count_i)."""
    model, texts = decoder(bias_update_rate=0.1), [tokens(), tokens().flip(1), tokens(1)]
    counts = [sum(each) for each in zip(*(choices(model, text) for text in texts), strict=True)]
    train_step(model, texts)
    for moe, count in zip(moe_layers(model), counts, strict=True):
        wanted = 0.1 * torch.sign(count.float().mean() - count)
        assert wanted.unique().numel() > 1
        assert torch.equal(moe.router.selection_bias, wanted)


def test_a_skipped_update_moves_nothing() -> None:
    model = decoder(bias_update_rate=0.1)
    balance = Balance(model)
    balance.begin_step(1.0)
    model(tokens()).sum().backward()
    balance.end_of_step(0.0, skipped=torch.tensor(True))
    assert not any(moe.router.selection_bias.any() for moe in moe_layers(model))


def test_evaluation_and_passes_without_gradient_touch_nothing() -> None:
    model = decoder(bias_update_rate=0.1)
    before = copy.deepcopy(dict(model.named_buffers()))
    with torch.no_grad():
        model(tokens())
    model.eval()
    model(tokens()).sum().backward()
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine_decay", [1, (1 + math.cos(0.05 * math.pi)) / 2, 0.5, 0]),
        ("linear_warmup", [0, 0.5, 1, 1]),
    ],
)
def test_bias_schedules(schedule, wanted) -> None:
    assert [bias_factor(schedule, done) for done in (0, 0.05, 0.5, 1)] == pytest.approx(wanted)
    model = decoder(bias_update_rate=0.1, bias_schedule=schedule)
    train_step(model, [tokens()], done=0.5)
    largest = max(moe.router.selection_bias.abs().max().item() for moe in moe_layers(model))
    assert largest == pytest.approx(0.1 * wanted[2])


@pytest.mark.parametrize("scope", ["sequence", "micro_batch"])
@pytest.mark.parametrize("capacity", [0.0, 1.0])
def test_gradient_scale_scales_gradients_of_experts_and_nothing_else(scope, capacity) -> None:
    """Each expert's gradient, of each scope, by the even load over its own; no outputs."""
    options = {"capacity_factor": capacity, "balance_scope": scope, **OFF}
    generator = torch.Generator().manual_seed(9)
    wanted = torch.randn(states().shape, generator=generator, dtype=torch.float64)
    scaled, x = layer(gradient_scale=True, **options), states()
    plain, same = layer(**options), states()
    y, expected = scaled(x), plain(same)
    assert torch.equal(y, expected)
    (y * wanted).sum().backward()
    (expected * wanted).sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=1e-10, atol=1e-12)
    routers = scaled.router.weight.grad, plain.router.weight.grad
    torch.testing.assert_close(*routers, rtol=1e-10, atol=1e-12)

    by_hand: dict[str, Tensor] = {}
    for part in range(BATCH) if scope == "sequence" else [slice(None)]:
        one, some = layer(**options), states().detach()
        picked = some[part : part + 1] if isinstance(part, int) else some
        target = wanted[part : part + 1] if isinstance(part, int) else wanted
        routed = one.router(picked.flatten(0, 1))
        counts = torch.bincount(routed.experts.flatten(), minlength=8)
        if capacity:
            counts = counts.clamp(max=math.ceil(len(routed.experts) * 2 / 8))
        (one(picked) * target).sum().backward()
        factor = counts.sum().double() / 8 / counts.clamp(min=1)
        assert factor.max() > 1.3 or capacity
        for name, gradient in gradients(one.experts).items():
            by_hand[name] = by_hand.get(name, 0) + gradient * factor[:, None, None]
    assert furthest(gradients(scaled.experts), by_hand) < 1e-12


def test_what_is_reported_of_a_step() -> None:
    model = decoder(capacity_factor=1.0, bias_update_rate=0.1, z_loss_weight=0.5)
    for module in model.modules():
        if isinstance(module, MoE):
            module.router.selection_bias[:2] = torch.tensor([0.3, -0.2])
    counts = torch.stack(choices(model, tokens())).double()
    report = train_step(model, [tokens()]).report
    for name, busiest in (("max", counts.amax(1)), ("min", counts.amin(1))):
        expected = float((busiest / counts.mean(1)).mean())
        assert float(report.means[f"moe/load_{name}"]) == pytest.approx(expected)
    assert float(report.means["moe/bias"]) == pytest.approx(0.5)  # as it was in the step
    assert 0 < report.means["moe/dropped"] < 1
    assert 0 < report.means["moe/entropy"] < math.log(8)
    assert report.sums.keys() == {"aux_loss", "router_z_loss"}
    assert 0.9 < report.sums["aux_loss"] / (BATCH * SEQ) < 8
