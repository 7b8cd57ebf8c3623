"""Kernels of a GPU against each other; skipped without one."""

from __future__ import annotations

import shlex

import pytest
import torch
from run_helpers import logged, weights

from forge.models.grouped import grouped_mm, looped_mm
from forge.models.sdpa import CUDNN_FIRST, causal_attention

GPU = "cuda"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
BF16 = "run.device=cuda precision=bf16 train.max_steps=3 optimizer.lr=1e-4"
EXPERTS = "model.moe.num_experts=4 model.moe.top_k=2"
POLICIES = ("none", "full", "selective")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", ["", EXPERTS], ids=["dense", "experts"])
def test_inductor_trains_as_eager_in_bf16(trained, model, policy):
    chunked = "objective.loss_fn=chunked_cross_entropy objective.ce_chunk_size=16"
    words = f"{BF16} {model} {chunked} train.activation_checkpointing={policy}"
    losses = [
        logged(trained(words, f"train.compile_model={compiled}"), "train/loss")
        for compiled in ("false", "true")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


@pytest.mark.parametrize("queries", [1, 64, 256])
@pytest.mark.parametrize("shared", [2, 8], ids=["grouped", "whole"])
@pytest.mark.parametrize("kernel", ["auto", "flash", "cudnn", "efficient", CUDNN_FIRST])
def test_attention_is_that_of_the_math_kernel(kernel, shared, queries):
    """All tokens, one after a past, and several after it; its gradients too."""
    if kernel == "efficient" and shared != 8:
        pytest.skip("it takes as many key heads as heads, which a rule says")
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 8, queries, 64), (2, shared, 256, 64), (2, shared, 256, 64))
    exact = [torch.randn(shape, generator=generator).to(GPU) for shape in shapes]
    exact = [x.bfloat16().float().requires_grad_() for x in exact]
    half = [x.detach().bfloat16().requires_grad_() for x in exact]
    expected, found = causal_attention(*exact, "math"), causal_attention(*half, kernel)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    ours = torch.autograd.grad(found.sum(), half)
    theirs = torch.autograd.grad(expected.sum(), exact)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other).norm() <= 3e-2 * other.norm() + 1e-2


def test_grouped_products_are_those_of_a_loop_with_experts_that_have_no_rows():
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([5, 0, 40, 0, 3], device=GPU)
    x = torch.randn(48, 32, generator=generator).bfloat16().to(GPU)
    weight = torch.randn(5, 32, 64, generator=generator).bfloat16().to(GPU)
    of = []
    for product, sizes in ((looped_mm, counts), (grouped_mm, counts.cumsum(0).int())):
        rows, matrices = (each.clone().requires_grad_() for each in (x, weight))
        made = product(rows, matrices, sizes)
        made.square().sum().backward()
        of.append((made, rows.grad, matrices.grad))
    for ours, theirs in zip(*of, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)
    assert not of[1][2][1].any()
    assert not of[1][2][3].any()


def test_sharding_over_one_gpu_is_the_plain_model(assembled):
    """In bf16 FSDP holds the weights; loss and gradient are near those of fp32."""
    loop = assembled(BF16, "train.compile_model=false")
    before = weights(loop.model)
    step = next(loop.loader)
    found = loop.update.gradients(step, 0)
    assert set(before) == set(weights(loop.model))
    plain = assembled("run.device=cuda precision=fp32 train.compile_model=false")
    reference = plain.update.gradients(next(plain.loader), 0)
    assert found.loss.item() == pytest.approx(reference.loss.item(), rel=1e-2)
    assert found.grad_norm.item() == pytest.approx(reference.grad_norm.item(), rel=5e-2)


def test_memory_that_runs_out_is_said_with_what_needs_less(new_run, capsys):
    from forge import worker

    words = f"{BF16} train.batch_size=512 train.seq_len=32 model.vocab_size=300000"
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        assert worker.main([str(new_run(*shlex.split(words)))]) == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "train.activation_checkpointing=full" in capsys.readouterr().err
