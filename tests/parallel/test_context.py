"""Context parallelism: parts of sequences, and the kernel of late parts."""

from __future__ import annotations

import pytest
import torch

from forge.models.sdpa import causal_attention
from forge.parallel.context import Part


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
