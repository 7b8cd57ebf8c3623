"""Collectives on local tensors: values and gradients, plain and compiled, against written sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor

from forge.parallel import collectives
from forge.parallel.collectives import gather_equal

RANKS = 2
SHAPE = (4, 6, 2)


def of_rank(
    rank: int, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64
) -> Tensor:
    """What a rank has: whole numbers, so that sums are exact in every type."""
    return torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def together(shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [of_rank(rank, shape, dtype) for rank in range(RANKS)]


def run(
    function: Callable[[Tensor], Tensor], x: Tensor, weight: Callable[[int, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Value, and gradient of the sum of value * weight."""
    x = x.clone().requires_grad_()
    value = function(x)
    (value * weight(dist.get_rank(), value)).sum().backward()
    assert x.grad is not None
    return value.detach(), x.grad


def own_weight(rank: int, value: Tensor) -> Tensor:
    """Every rank uses the value in its own way."""
    return of_rank(10 + rank, tuple(value.shape), value.dtype)


def same_weight(rank: int, value: Tensor) -> Tensor:
    return own_weight(0, value)


def weights(value: Tensor) -> list[Tensor]:
    return [own_weight(rank, value) for rank in range(RANKS)]


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def check(
    wrap: Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]],
    dtype: torch.dtype,
    rank: int,
) -> None:
    """All collectives on this rank; `wrap` compiles them or not."""
    parts, mine = together(dtype=dtype), of_rank(rank, dtype=dtype)
    whole = torch.stack(parts).sum(0)

    def of(name: str, *dims: int, weight=own_weight) -> tuple[Tensor, Tensor, Tensor]:
        """Value, its gradient, and the sum of all ranks' gradients of the value."""
        function = getattr(collectives, name)
        value, gradient = run(wrap(lambda x: function(x, *dims, world())), mine, weight)
        return value, gradient, torch.stack(weights(value)).sum(0)

    for dim in (0, 1, -2):
        value, gradient, summed = of("gather", dim)
        assert torch.equal(value, torch.cat(parts, dim))
        assert torch.equal(gradient, summed.chunk(RANKS, dim)[rank])
        value, gradient, _ = of("scatter_sum", dim)
        assert torch.equal(value, whole.chunk(RANKS, dim)[rank])
        assert torch.equal(gradient, torch.cat(weights(value), dim))
        value, gradient, _ = of("gather_equal", dim, weight=same_weight)
        assert torch.equal(value, torch.cat(parts, dim))
        assert torch.equal(gradient, same_weight(0, value).chunk(RANKS, dim)[rank])
    value, gradient, _ = of("sum_over", weight=same_weight)
    assert torch.equal(value, whole)
    assert torch.equal(gradient, same_weight(0, value))
    value, gradient, summed = of("sum_gradient")
    assert torch.equal(value, mine)
    assert torch.equal(gradient, summed)
    for split, join in ((1, 0), (0, 1), (1, 2), (2, 1), (1, 1)):
        value, gradient, _ = of("exchange", split, join)
        received = [part.chunk(RANKS, split)[rank] for part in parts]
        assert torch.equal(value, torch.cat(received, join))
        sent_back = [weight.chunk(RANKS, join)[rank] for weight in weights(value)]
        assert torch.equal(gradient, torch.cat(sent_back, split))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_values_and_gradients(dtype) -> None:
    on_ranks(RANKS, lambda rank: check(lambda function: function, dtype, rank))


def test_compiled_without_a_break() -> None:
    def compiled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)

    on_ranks(RANKS, lambda rank: check(compiled, torch.float32, rank))


@pytest.mark.parametrize("size", [3, 5, 2, 1])
def test_parts_of_torch_chunk(size) -> None:
    """Uneven ones, and empty ones, as those of a vocabulary."""

    def work(rank: int) -> None:
        whole = of_rank(7, (2, size))
        mine = of_rank(7, (2, 0)) if rank >= len(whole.chunk(3, 1)) else whole.chunk(3, 1)[rank]
        value, gradient = run(lambda x: gather_equal(x, 1, world(), size), mine, same_weight)
        assert torch.equal(value, whole)
        weight = same_weight(0, whole).chunk(3, 1)
        assert torch.equal(gradient, weight[rank] if rank < len(weight) else weight[0][:, :0])

    on_ranks(3, work)
