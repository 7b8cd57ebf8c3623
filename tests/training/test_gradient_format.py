"""Gradients stored in bf16 of weights in fp32: their bits, sums and updates, in several layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.optimizers import optimizer_of
from layouts import trains
from run_helpers import assert_bit_equal, logged, step_of, stored
from test_update import as_step, decoder, global_batches, make_update
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.config.optimizers.adam import AdamPax, AdamW
from forge.config.optimizers.lion import Lion
from forge.config.optimizers.low_bit import AdamWLowBit
from forge.config.optimizers.muon import Muon, NorMuon
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW
from forge.config.optimizers.sgd import SGD
from forge.parallel.fsdp import shard
from forge.parallel.fsdp_private import store_gradients
from forge.tensors.local import local
from forge.training.step import Update

STEPS, CLIP, DECAY, BETAS, EPS = 3, 0.05, 0.1, (0.9, 0.99), 1e-8
ADAMW = f"""
    optimizer=adamw optimizer.weight_decay={DECAY} optimizer.betas=[0.9,0.99] optimizer.eps={EPS}
    optimizer.decay_embeddings=true train.grad_clip_norm={CLIP} checkpoint.interval=1
    checkpoint.keep_last_n=0 precision=fp32
    parallel.reduce_gradients=step model.tie_embeddings=false
"""
BF16 = "precision.grad_dtype=bf16"
ONE_MICRO_BATCH = "train.batch_size=8"
COMPILED = f"train.compile_model=true train.compile_backend=aot_eager {ONE_MICRO_BATCH}"
EXPERTS = "model.moe.num_experts=4 model.moe.top_k=2"
NIGHTLY = pytest.mark.nightly


Gradients = list[dict[str, Tensor]]


@pytest.fixture
def run(tmp_path: Path, text_file: Path, monkeypatch) -> Callable[..., tuple[Path, Gradients]]:
    """Takes a run of STEPS steps in a layout; returns its folder, and the whole gradients of each
    step by name, as they were before clipping.
    """
    train, clip = trains(tmp_path, text_file), Update._clip
    folders: list[Path] = []

    def clip_and_save(update: Update, norm: Tensor, *, read: bool) -> Tensor | None:
        update.steps_taken = step = getattr(update, "steps_taken", 0) + 1  # type: ignore[attr-defined]
        whole = {
            name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else local(p.grad).clone()  # type: ignore[arg-type]
            for name, p in update.named
        }
        torch.save(whole, folders[-1] / f"{step}_{update.ranks.rank}.pt")
        return clip(update, norm, read=read)

    monkeypatch.setattr(Update, "_clip", clip_and_save)

    def take(layout: str, *options: str) -> tuple[Path, Gradients]:
        folders.append(tmp_path / f"gradients_{len(folders)}")
        folders[-1].mkdir()
        path = train(folders[-1].name + "_run", layout, STEPS, ADAMW, *options)
        by_rank = [
            [torch.load(file) for file in sorted(folders[-1].glob(f"{step + 1}_*.pt"))]
            for step in range(STEPS)
        ]
        return path, [reduce(dict.__or__, ranks) for ranks in by_rank]

    return take


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("single", ONE_MICRO_BATCH),
        ("fsdp2", ""),
        pytest.param("single", COMPILED, marks=NIGHTLY),
        pytest.param("fsdp2", "parallel.reduce_gradients=micro_batch", marks=NIGHTLY),
        pytest.param("fsdp2 x tp2", "", marks=NIGHTLY),
        pytest.param("hsdp 2x2", "", marks=NIGHTLY),
        pytest.param("pp2", "", marks=NIGHTLY),
        pytest.param("ep2 x fsdp2", EXPERTS, marks=NIGHTLY),
    ],
)
def test_gradients_are_rounded_once_and_adamw_computes_in_fp32(run, layout, options):
    """In the first step they are the gradients of an fp32 run, rounded; the weights are those of
    AdamW in fp64 by numpy, from the gradients that were stored.
    """
    exact, rounded = (run(layout, options, dtype) for dtype in ("", BF16))
    (_, of_fp32), (path, of_bf16) = exact, rounded
    assert {values.dtype for values in of_fp32[0].values()} == {torch.float32}
    assert {values.dtype for step in of_bf16 for values in step.values()} == {torch.bfloat16}
    if "micro_batch" not in options:
        assert_bit_equal(of_bf16[0], {name: g.bfloat16() for name, g in of_fp32[0].items()})
    checkpoints = [stored(step_of(path, step), "model/") for step in range(1, STEPS + 1)]
    assert {values.dtype for values in checkpoints[-1].values()} == {torch.float32}
    norms = [
        np.sqrt(sum((g.double().numpy() ** 2).sum() for g in step.values())) for step in of_bf16
    ]
    assert logged(path, "train/grad_norm") == pytest.approx(
        {number + 1: norm for number, norm in enumerate(norms)}, rel=1e-6
    )
    assert min(norms) > CLIP
    rates = logged(path, "lr")
    for name in of_bf16[0]:
        clipped = [
            step[name].double().numpy() * CLIP / (norm + 1e-6)
            for step, norm in zip(of_bf16, norms, strict=True)
        ]
        moved = adamw_by_numpy(clipped)
        for number in range(1, STEPS):  # the weights before the first step are not stored
            before, after = (checkpoints[number - k][name].double().numpy() for k in (1, 0))
            decay = DECAY if before.ndim > 1 else 0.0
            expected = before - rates[number + 1] * (moved[number] + decay * before)
            np.testing.assert_allclose(after, expected, rtol=0, atol=3e-7, err_msg=name)


def adamw_by_numpy(gradients: list[np.ndarray]) -> list[np.ndarray]:
    """Directions of AdamW (arXiv:1711.05101, algorithm 2) without decay, update by update."""
    (beta1, beta2), first, second, found = BETAS, 0.0, 0.0, []
    for number, gradient in enumerate(gradients, start=1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        mean, square = first / (1 - beta1**number), second / (1 - beta2**number)
        found.append(mean / (np.sqrt(square) + EPS))
    return found


@pytest.mark.parametrize("each", [False, True], ids=["step", "micro_batch"])
@pytest.mark.parametrize("fsdp", [False, True], ids=["plain", "fsdp"])
def test_sums_over_micro_batches_are_in_fp32_or_rounded_each_time(mesh_of_one, fsdp, each):
    step = as_step(*global_batches(masked=True)[0], 4)
    parts = []
    for batch in step.batches:
        model = decoder(torch.float32)
        make_update(model, torch.optim.SGD(model.parameters())).gradients(
            replace(step, batches=[batch]), 0
        )
        parts.append({name: p.grad for name, p in model.named_parameters()})
    model = decoder(torch.float32)
    if fsdp:
        shard(model, mesh_of_one)
    store_gradients(model, torch.bfloat16)
    update = make_update(model, optimizer_of(SGD(), model), reduce_each=each)
    if fsdp:
        update.backward.gradient_sums = None  # FSDP adds up
    update.gradients(step, 0)
    for name, parameter in model.named_parameters():
        gradients = [part[name] for part in parts]
        if each:
            expected = reduce(torch.add, [g.bfloat16() for g in gradients])
        elif fsdp:  # as they come
            expected = reduce(torch.add, gradients).bfloat16()
        else:  # autograd rounds each, and they are added up in fp32
            expected = reduce(torch.add, [g.bfloat16().float() for g in gradients]).bfloat16()
        assert parameter.grad is not None
        assert torch.equal(local(parameter.grad), expected), name


@pytest.mark.parametrize(
    "section",
    [
        AdamW(lr=0.01),
        AdamPax(lr=0.01),
        AdamWLowBit(lr=0.01),
        Lion(lr=0.01),
        Muon(lr=0.01),
        NorMuon(lr=0.01),
        ScheduleFreeAdamW(lr=0.01),
        SGD(lr=0.01, momentum=0.9),
    ],
    ids=lambda section: section.schema_name,
)
def test_an_optimizer_reads_bf16_as_the_same_numbers_in_fp32(section):
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = decoder(torch.float32)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.ndim == 2 or not isinstance(section, Muon))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        store_gradients(model, dtype)
        optimizer = optimizer_of(section, model)
        for number in range(3):
            for index, parameter in enumerate(trained):
                draw = torch.Generator().manual_seed(10 * number + index)
                gradient = torch.randn(parameter.shape, generator=draw).bfloat16()
                parameter.grad = gradient.to(dtype)
            optimizer.step()
        found.append(list(model.parameters()))
        states = [values for state in optimizer.state.values() for values in state.values()]
        assert torch.bfloat16 not in {values.dtype for values in states}
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
