"""Parts of uneven sizes; all other collectives are in the layouts of test_parity."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks

from forge.parallel.collectives import gather_equal


@pytest.mark.parametrize("size", [3, 5, 2, 1])
def test_parts_of_torch_chunk(size) -> None:
    """Some may be shorter or empty, as those of a vocabulary. Forward, and back to the part."""
    whole = torch.arange(2.0 * size).view(2, size)

    def work(rank: int) -> None:
        group, chunks = dist.group.WORLD, whole.chunk(3, 1)
        assert group is not None
        mine = chunks[rank].clone() if rank < len(chunks) else torch.empty(2, 0)
        value = gather_equal(mine.requires_grad_(), 1, group, size)
        assert torch.equal(value, whole)
        (value * whole).sum().backward()
        assert mine.grad is not None
        assert torch.equal(mine.grad, mine)

    on_ranks(3, work)
