"""Plain and chunked cross-entropy against a float64 closed form in numpy, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from forge.config.objectives.base import CHUNK_BYTES, MAX_CHUNK_TOKENS, auto_chunk_size
from forge.models.head import Head
from forge.objectives.chunked_cross_entropy import add_product, chunked_cross_entropy
from forge.objectives.cross_entropy import cross_entropy

TOKENS, DIM, VOCAB = 23, 8, 37
MASKS = {"none": 0.0, "some": 0.4, "all": 1.0}


@dataclass(kw_only=True)
class Reference:
    """Sums and gradients of ce + z_loss_weight * z_loss, worked out by hand in float64."""

    ce: float
    z_loss: float
    total: float
    grad_hidden: np.ndarray
    grad_weight: np.ndarray


def reference(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    z_loss_weight: float,
    weights: np.ndarray | None = None,
    smoothing: float = 0.0,
) -> Reference:
    h, w, t = hidden.detach().double().numpy(), weight.detach().double().numpy(), targets.numpy()
    rows = np.flatnonzero(t != -100)
    of = np.ones(len(rows)) if weights is None else weights[rows]
    logits = h[rows] @ w.T
    log_partition = np.log(np.exp(logits).sum(1))
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ce = (of * (log_partition - logits[np.arange(len(rows)), t[rows]])).sum()
    uniform = (of * (log_partition - logits.mean(1))).sum()
    z_loss = (of * log_partition**2).sum()
    grad_logits = softmax * (1 + 2 * z_loss_weight * log_partition[:, None])
    grad_logits[np.arange(len(rows)), t[rows]] -= 1 - smoothing
    grad_logits = of[:, None] * (grad_logits - smoothing / VOCAB)
    grad_hidden = np.zeros_like(h)
    grad_hidden[rows] = grad_logits @ w
    total = (1 - smoothing) * ce + smoothing * uniform + z_loss_weight * z_loss
    grad_weight = grad_logits.T @ h[rows]
    gradients = {"grad_hidden": grad_hidden, "grad_weight": grad_weight}
    return Reference(ce=ce, z_loss=z_loss, total=total, **gradients)


def problem(
    dtype: torch.dtype, masked: float = 0.4, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, DIM, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(VOCAB, DIM, dtype=dtype, generator=generator).requires_grad_()
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    targets[torch.rand(TOKENS, generator=generator) < masked] = -100
    return hidden, weight, targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any):
    return cross_entropy(hidden @ weight.T, targets, **options)


def chunked(size: int, compile_backend: str | None = None):
    def loss(hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any):
        how = {"chunk_size": size, "compile_backend": compile_backend}
        return chunked_cross_entropy(hidden, Head(weight), targets, **options, **how)

    return loss


LOSSES = {
    "plain": plain,
    "chunk 1": chunked(1),
    "chunk 5": chunked(5),
    "chunk 23": chunked(TOKENS),
    "chunk auto": chunked(0),
    "chunk 5 compiled": chunked(5, "aot_eager"),
}


def relative_error(got: Tensor | None, expected: np.ndarray | float) -> float:
    assert got is not None
    norm = np.linalg.norm(np.atleast_1d(expected))
    difference = np.atleast_1d(got.detach().double().numpy() - expected)
    return float(np.linalg.norm(difference) / max(norm, 1e-300))


@pytest.mark.parametrize("masked", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("z_loss_weight", [0.0, 0.3])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["fp64", "fp32"]
)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_sums_and_gradients_equal_the_closed_form(loss, dtype, tolerance, z_loss_weight, masked):
    hidden, weight, targets = problem(dtype, masked)
    expected = reference(hidden, weight, targets, z_loss_weight)
    sums = loss(hidden, weight, targets, z_loss_weight=z_loss_weight)
    sums.total.backward()
    assert sums.total.dtype == dtype
    assert not sums.ce.requires_grad
    assert not sums.z_loss.requires_grad
    assert relative_error(sums.total, expected.total) <= tolerance
    assert relative_error(sums.ce, expected.ce) <= tolerance
    assert relative_error(sums.z_loss, expected.z_loss if z_loss_weight else 0.0) <= tolerance
    assert relative_error(hidden.grad, expected.grad_hidden) <= tolerance
    assert relative_error(weight.grad, expected.grad_weight) <= tolerance


@pytest.mark.parametrize("loss", ["plain", "chunk 5", "chunk 5 compiled"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_and_smoothed_labels_by_hand(loss: str, smoothing: float) -> None:
    torch.compiler.reset()  # there is a limit to how often a function is compiled
    hidden, weight, targets = problem(torch.float64)
    weights = torch.rand(TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = reference(hidden, weight, targets, 0.3, weights.numpy(), smoothing)
    options = {"z_loss_weight": 0.3, "weights": weights, "smoothing": smoothing, "each": True}
    sums = LOSSES[loss](hidden, weight, targets, **options)
    sums.total.backward()
    for got, wanted in (
        (sums.total, expected.total),
        (sums.each.sum(), expected.ce),
        (hidden.grad, expected.grad_hidden),
        (weight.grad, expected.grad_weight),
    ):
        assert relative_error(got, wanted) <= 1e-12


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_large_logits_do_not_overflow(loss):
    hidden, weight, targets = problem(torch.float64)
    expected = torch.nn.functional.cross_entropy(300 * hidden @ weight.T, targets, reduction="sum")
    assert expected > 3000
    total = loss(300 * hidden, weight, targets).total
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)


def test_backward_twice_gives_the_same_gradient_twice():
    hidden, weight, targets = problem(torch.float64)
    total = chunked(4)(hidden, weight, targets).total
    first = torch.autograd.grad(3 * total, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(3 * total, (hidden, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_one_side_alone_gets_its_gradient(frozen):
    hidden, weight, targets = problem(torch.float64)
    expected = reference(hidden, weight, targets, 0.0)
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    chunked(4)(hidden, weight, targets).total.backward()
    if frozen == "hidden":
        assert hidden.grad is None
        assert relative_error(weight.grad, expected.grad_weight) <= 1e-12
    else:
        assert weight.grad is None
        assert relative_error(hidden.grad, expected.grad_hidden) <= 1e-12


def test_without_grad_no_gradient_is_computed(monkeypatch):
    hidden, weight, targets = problem(torch.float64)
    expected = reference(hidden, weight, targets, 0.0)

    def refuse(*args: object) -> None:
        raise AssertionError("made a gradient under no_grad")

    monkeypatch.setattr("forge.objectives.chunked_cross_entropy.add_product", refuse)
    with torch.no_grad():
        total = chunked(4)(hidden, weight, targets).total
    assert not total.requires_grad
    assert relative_error(total, expected.total) <= 1e-12
    with pytest.raises(AssertionError, match="made a gradient"):
        chunked(4)(hidden, weight, targets)


@pytest.mark.parametrize(
    ("compute_dtype", "tolerance"),
    [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
    ids=["bf16", "fp16"],
)
def test_half_precision_is_multiplied_and_summed_in_fp32(compute_dtype, tolerance):
    exact = problem(torch.float32)
    expected = reference(*exact, 0.1)
    hidden, weight = (value.detach().to(compute_dtype).requires_grad_() for value in exact[:2])
    sums = chunked(5)(hidden, weight, exact[2], z_loss_weight=0.1)
    sums.total.backward()
    assert sums.total.dtype == torch.float32
    assert hidden.grad is not None
    assert hidden.grad.dtype == weight.grad.dtype == compute_dtype
    errors = [relative_error(sums.total, expected.total)]
    errors.append(relative_error(hidden.grad, expected.grad_hidden))
    errors.append(relative_error(weight.grad, expected.grad_weight))
    assert max(errors) <= tolerance
    assert max(errors) > 1e-6, "nothing was rounded"


def test_in_fp16_gradients_that_are_too_small_for_it_come_back_under_a_loss_scale():
    """Unscaled, those of hidden states and weights of about 2^-19 would be 0 or denormal."""
    exact = problem(torch.float32)
    hidden, weight = (value.detach().half() for value in exact[:2])
    tiny = [(value * 2.0**-19).requires_grad_() for value in (hidden, weight)]
    (chunked(5)(*tiny, exact[2]).total * 2.0**12).backward()
    closed = reference(*tiny, exact[2], 0.0)
    assert relative_error(tiny[0].grad, closed.grad_hidden * 2.0**12) <= 2e-3
    assert relative_error(tiny[1].grad, closed.grad_weight * 2.0**12) <= 2e-3


def test_upstream_factor_is_not_rounded_to_half_precision():
    hidden, weight, targets = problem(torch.float32)
    half = hidden.detach().bfloat16().requires_grad_()
    factor = 1 + 2**-8  # bfloat16 would round it to 1
    total = chunked(5)(half, weight, targets).total
    (unscaled,) = torch.autograd.grad(total, half, retain_graph=True)
    (scaled,) = torch.autograd.grad(total * factor, half)
    assert torch.equal(scaled, (unscaled.double() * factor).bfloat16())
    assert not torch.equal(scaled, unscaled)


def test_auto_chunk_is_4096_tokens_or_bounded_by_bytes():
    assert auto_chunk_size(vocab=256, dim=64) == MAX_CHUNK_TOKENS
    tokens = auto_chunk_size(vocab=32000, dim=64)
    assert tokens * 32000 * 4 <= CHUNK_BYTES < (tokens + 1) * 32000 * 4
    assert auto_chunk_size(vocab=128256, dim=2048) == 2048
    assert auto_chunk_size(vocab=128256, dim=8192) == MAX_CHUNK_TOKENS
    assert auto_chunk_size(vocab=1 << 30, dim=1) == 1


def growth(chunk_size: int) -> int:
    """Of the resident set, in a fresh process."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "speed" / "cross_entropy.py"
    command = [sys.executable, str(benchmark), f"--measure={chunk_size}", "--iterations=1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["growth"]


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_peak_at_4096_x_32000_is_under_15_percent_of_plain():
    one, chunks = growth(-1), growth(0)
    assert one > 3 * 4096 * 32000 * 4 * 0.9, "the plain loss no longer holds three copies of logits"
    assert chunks < 0.15 * one


@pytest.mark.parametrize("chunk_size", [0, 5])
def test_capped_and_multiplied_logits(chunk_size) -> None:
    """A closed form of both, in float64: with their derivative, and z-loss."""
    hidden, weight, targets = problem(torch.float64)
    head = Head(weight, multiplier=1.7, cap=3.0)
    sums = (
        chunked_cross_entropy(hidden, head, targets, z_loss_weight=0.1, chunk_size=chunk_size)
        if chunk_size
        else cross_entropy(head.logits(hidden), targets, z_loss_weight=0.1)
    )
    sums.total.backward()
    h, w, t = hidden.detach().numpy(), weight.detach().numpy(), targets.numpy()
    rows = np.flatnonzero(t != -100)
    logits = 3.0 * np.tanh(1.7 * h[rows] @ w.T / 3.0)
    partition = np.exp(logits).sum(1, keepdims=True)
    picked = logits[np.arange(len(rows)), t[rows]]
    total = (np.log(partition[:, 0]) - picked + 0.1 * np.log(partition[:, 0]) ** 2).sum()
    assert sums.total.item() == pytest.approx(total, rel=1e-12)
    gradient = np.exp(logits) / partition * (1 + 0.2 * np.log(partition))
    gradient[np.arange(len(rows)), t[rows]] -= 1
    gradient *= 1.7 * (1 - (logits / 3.0) ** 2)
    assert np.abs(logits).max() > 2.9
    np.testing.assert_allclose(hidden.grad[rows].numpy(), gradient @ w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weight.grad.numpy(), gradient.T @ h[rows], rtol=1e-10, atol=1e-12)


@pytest.mark.nightly
@pytest.mark.slow
def test_inductor_makes_the_same_of_a_chunk_and_of_all_chunks_that_are_as_long():
    torch._dynamo.reset()
    counters.clear()
    for seed in range(2):
        inputs = problem(torch.float32, seed=seed)
        expected = reference(*inputs, z_loss_weight=0.1)
        sums = chunked(5, "inductor")(*inputs, z_loss_weight=0.1)
        (3 * sums.total).backward()
        assert relative_error(sums.total, expected.total) < 1e-6
        assert relative_error(inputs[0].grad, 3 * expected.grad_hidden) < 1e-5
        assert relative_error(inputs[1].grad, 3 * expected.grad_weight) < 1e-5
    assert counters["stats"]["unique_graphs"] == 2  # and of the last, shorter chunk
    assert not counters["graph_break"]


def test_a_gradient_is_not_rounded_before_it_is_divided_by_the_number_of_targets():
    """In bf16 1 / 1,000 is wrong by 2e-4, which all gradients would share."""
    hidden, weight, targets = problem(torch.bfloat16, masked=0.0)
    whole = chunked(5)(hidden, weight, targets).total
    (gradient,) = torch.autograd.grad(whole, hidden)
    share = chunked(5)(hidden, weight, targets).total / 1000
    (divided,) = torch.autograd.grad(share, hidden)
    assert torch.equal(divided, (gradient.float() * torch.tensor(0.001)).bfloat16())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_adds_products_of_16_bits_in_fp32():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 32, generator=generator).bfloat16().cuda() for _ in range(2))
    added = torch.ones(32, 32, device="cuda")
    add_product(added, left.T, right)
    expected = 1 + left.T.double() @ right.double()
    torch.testing.assert_close(added.double(), expected, rtol=1e-5, atol=1e-5)
