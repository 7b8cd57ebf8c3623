"""The update against a plain loop written out by hand, in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.optimizers import optimizer_of
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.config.optimizers.adam import AdamW as AdamWConfig
from forge.config.precision import Precision
from forge.data.batches.loader import Step
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.objectives.objective import LookedAhead
from forge.objectives.pretrain import Pretrain
from forge.parallel.fsdp import shard
from forge.parallel.modules import HALF
from forge.tensors.local import local
from forge.training.checkpoints.checkpoint import optimizer_tensors
from forge.training.checkpoints.restore import restore_optimizer
from forge.training.process import loss_scaler
from forge.training.step import Update

VOCAB, SEQ, STEPS = 37, 6, 4
SHAPE = DecoderConfig(
    dim=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    vocab_size=VOCAB,
    max_seq_len=SEQ,
    ffn_hidden_dim=24,
    init_std=0.3,
)


def decoder(dtype: torch.dtype = torch.float64) -> Decoder:
    model = Decoder(SHAPE)
    init_weights(model, 0)
    return model.to(dtype)


def scaler_of(mixed_precision: str, **options) -> torch.amp.GradScaler:
    return loss_scaler(Precision(mixed_precision=mixed_precision, **options), torch.device("cpu"))


def make_update(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, clip: float = 0.0, **options
) -> Update:
    parts = {
        "objective": Pretrain(PretrainConfig()),
        "schedule": lambda step: 1.0,
        "device": torch.device("cpu"),
    } | options
    return Update(model=model, optimizer=optimizer, clip_norm=clip, **parts)


def global_batches(*, masked: bool) -> list[tuple[Tensor, Tensor]]:
    """Tokens and targets [8, seq] of each step; masked: the first rows lose most targets, the last
    ones few, one all.
    """
    draw = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        tokens, targets = torch.randint(VOCAB, (2, 8, SEQ), generator=draw)
        if masked:
            for row, kept in enumerate((1, 2, 0, 1, 6, 5, 6, 4)):
                targets[row, kept:] = -100
        found.append((tokens, targets))
    return found


def as_step(tokens: Tensor, targets: Tensor, accumulation: int) -> Step:
    batches = [
        dict(zip(("tokens", "targets"), pair, strict=True))
        for pair in zip(tokens.chunk(accumulation), targets.chunk(accumulation), strict=True)
    ]
    n_targets = int((targets != -100).sum())
    return Step(
        batches=batches, n_tokens=targets.numel(), n_targets=n_targets, n_places=targets.numel()
    )


def plain_sgd(
    model: Decoder, data: list[tuple[Tensor, Tensor]], lrs: dict[str, float], clip: float
) -> tuple[list[float], list[float]]:
    """Gradient descent without an optimizer, whole batches at once; losses and gradient norms
    before clipping.
    """
    losses, norms = [], []
    for tokens, targets in data:
        model.zero_grad()
        loss = F.cross_entropy(
            model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="mean"
        )
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= lrs["head" if name.startswith("output") else "rest"] * scale * p.grad
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


@pytest.mark.parametrize(
    "clip", [0.0, 0.5, 1e9], ids=["no_clip", "clipped", "clip_too_large_to_act"]
)
@pytest.mark.parametrize("masked", [False, True], ids=["all_targets", "masked_unevenly"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_several_updates_equal_a_plain_loop(accumulation, masked, clip):
    data, lrs = global_batches(masked=masked), {"head": 0.02, "rest": 0.1}
    reference, model = decoder(), decoder()
    losses, norms = plain_sgd(reference, data, lrs, clip)
    assert clip != 0.5 or min(norms) > 0.5, "the clipped case must clip"
    head = [p for name, p in model.named_parameters() if name.startswith("output")]
    rest = [p for name, p in model.named_parameters() if not name.startswith("output")]
    groups = [{"params": head, "lr": lrs["head"]}, {"params": rest, "lr": lrs["rest"]}]
    update = make_update(model, torch.optim.SGD(groups), clip=clip)
    for number, (tokens, targets) in enumerate(data):
        output = update(as_step(tokens, targets, accumulation), number)
        assert output.n_targets == int((targets != -100).sum())
        assert output.sums["ce"].item() / output.n_targets == pytest.approx(
            losses[number], rel=1e-12
        )
        assert output.grad_norm.item() == pytest.approx(norms[number], rel=1e-11)
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12, msg=name)


def test_a_group_follows_a_schedule_of_its_own_also_in_a_run_that_goes_on():
    model = decoder()
    head, *rest = model.parameters()
    own = {"params": [head], "lr": 0.4, "schedule": lambda number: 1 / (1 + number)}
    optimizer = torch.optim.SGD([{"params": rest, "lr": 0.1}, own], momentum=0.9)
    update = make_update(model, optimizer, schedule=lambda number: 0.5**number)
    for number, (tokens, targets) in enumerate(global_batches(masked=False)):
        restore_optimizer(model, optimizer, optimizer_tensors(model, optimizer))
        output = update(as_step(tokens, targets, 1), number)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == [0.1 * 0.5**number, 0.4 / (1 + number)]
        assert output.lr == rates[0]


@pytest.mark.parametrize(("format", "epsilon"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_16_bit_updates_stay_near_fp32_with_fp32_weights_and_norms_unscaled(
    format, epsilon, mesh_of_one
):
    data = global_batches(masked=True)
    results: dict[str, tuple[Tensor, list[float]]] = {}
    for chosen in ("fp32", format):
        model = decoder(torch.float32)
        if chosen != "fp32":
            shard(model, mesh_of_one, param_dtype=HALF[chosen])
        seen: set[torch.dtype] = set()
        model.blocks["0"].feed_forward.w_down.register_forward_hook(
            lambda module, x, y, seen=seen: seen.add(y.dtype)
        )
        update = make_update(
            model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler_of(chosen)
        )
        norms = [
            update(as_step(*pair, 2), number).grad_norm.item() for number, pair in enumerate(data)
        ]
        assert seen == {
            {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[chosen]
        }
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        results[chosen] = (
            torch.cat([local(p.detach()).flatten() for p in model.parameters()]),
            norms,
        )
    (exact, exact_norms), (rounded, norms) = results["fp32"], results[format]
    assert norms == pytest.approx(exact_norms, rel=8 * epsilon)
    assert not torch.equal(exact, rounded)
    assert torch.linalg.norm(exact - rounded) < 4 * epsilon * torch.linalg.norm(exact)


def test_offloaded_weights_are_skipped_on_the_host():
    """A kernel of the CPU reads the flag of a GPU before it has come."""
    model = decoder(torch.float32)
    on_gpu = {"device": torch.device("cuda"), "scaler": torch.amp.GradScaler("cuda", enabled=False)}
    update = make_update(model, optimizer_of(AdamWConfig(fused=True), model), **on_gpu)
    assert not update.skips_on_device


class FirstHalf(Pretrain):
    """Learns the first half of each row alone, as found out when the batches are there."""

    looks_ahead = True

    def looked_ahead(self, batches, read, total) -> LookedAhead:
        halves = [first_half(batch["tokens"], batch["targets"]) for batch in batches]
        ready = [dict(zip(("tokens", "targets"), half, strict=True)) for half in halves]
        return LookedAhead(ready, sum(int((half[1] != -100).sum()) for half in halves))


def first_half(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    shorter = targets.clone()
    shorter[:, SEQ // 2 :] = -100
    return tokens, shorter


def test_counts_that_come_back_from_looking_ahead_divide_the_loss():
    ends = []
    for objective in (FirstHalf(PretrainConfig()), Pretrain(PretrainConfig())):
        model = decoder()
        optimizer = optimizer_of(AdamWConfig(lr=0.01), model)
        update = make_update(model, optimizer, clip=1.0, objective=objective)
        for number, batch in enumerate(global_batches(masked=True)):
            known = batch if isinstance(objective, FirstHalf) else first_half(*batch)
            output = update(as_step(*known, 2), number)
            assert output.n_targets == int((first_half(*batch)[1] != -100).sum())
        ends.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *ends))
