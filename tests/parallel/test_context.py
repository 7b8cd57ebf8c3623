"""Context parallelism: parts of sequences, and the kernel of late parts."""

from __future__ import annotations

import pytest
import torch

from forge.models.sdpa import causal_attention
from forge.parallel.sequences.part import Part
from forge.parallel.sequences.ring import Queries, Ring, attend_to_run, run_gradients


def test_parts_cover_a_sequence_with_equal_work() -> None:
    for ranks in (1, 2, 4):
        every = [Part(rank=rank, ranks=ranks, balanced=True) for rank in range(ranks)]
        parts = [part.of(torch.arange(16), 0) for part in every]
        assert sorted(torch.cat(parts).tolist()) == list(range(16))
        assert len({int(part.sum()) for part in parts}) == 1  # keys that the queries of a rank read
    assert Part(rank=1, ranks=2, balanced=True).of(torch.arange(8), 0).tolist() == [2, 3, 4, 5]
    contiguous = Part(rank=1, ranks=2, balanced=False).of(torch.arange(8)[None], 1)
    assert contiguous.tolist() == [[4, 5, 6, 7]]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("run_of_keys", [0, 1])
def test_a_ring_by_flash(run_of_keys) -> None:
    """A run of queries over an earlier run of keys, and over its own: the kernel against fp32."""
    sizes = ((8, 128), (2, 128), (2, 128), (8, 128))
    q, k, v, grad = (
        torch.randn(2, heads, seq, 64, device="cuda", dtype=torch.bfloat16) for heads, seq in sizes
    )
    ring = Ring("", 0, 1, False, 64**-0.5, 0.0, 0, 0)
    results = []
    for inputs in ((q, k, v, grad), tuple(x.float() for x in (q, k, v, grad))):
        queries, keys, values, by_output = inputs
        output, total = attend_to_run(queries, keys, values, None, ring, [1, run_of_keys])
        delta = (by_output.float() * output).sum(-1)
        run = Queries(queries, by_output, output.to(queries.dtype), total, delta)
        parts = run_gradients(run, keys, values, None, ring, [1, run_of_keys])
        results.append([output, total, *parts])
    for mine, reference in zip(*results, strict=True):
        assert (mine.float() - reference.float()).norm() <= 2e-2 * reference.float().norm()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_flash_after_a_past(compiled) -> None:
    """Queries of a late chunk over all keys before them: a kernel without a mask against one."""
    sizes = ((8, 128), (2, 512), (2, 512))
    q, k, v = (
        torch.randn(2, heads, seq, 64, device="cuda", dtype=torch.bfloat16) for heads, seq in sizes
    )
    function = causal_attention
    if compiled:
        function = torch.compile(causal_attention, backend="aot_eager", fullgraph=True)
    results = []
    for backend in ("flash", "math"):
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = function(*inputs, backend)
        out.float().square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in inputs)])
    for mine, reference in zip(*results, strict=True):
        assert (mine.float() - reference.float()).norm() <= 2e-2 * reference.float().norm()
