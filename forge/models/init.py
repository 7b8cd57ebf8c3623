"""Initial weights that depend on the seed and a parameter's name and shape, and on no layout.

A parameter is filled in blocks of rows, each drawn whole, on the CPU and in fp32, from a generator
of its own, so that any device can make just the rows it owns, equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from typing import Protocol

import torch
from torch import Tensor, nn

VALUES_PER_BLOCK = 65536
VALUES_PER_PORTION = 1 << 21
Held = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


class Initialisable(Protocol):
    def init_std(self, name: str) -> float: ...
    def reset_buffers(self) -> None: ...
    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...


def whole(values: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A tensor that this process has all of, and all indices along each dimension."""
    return values, [torch.arange(size) for size in values.shape]


def init_weights(
    model: Initialisable, seed: int, *, held: Held = whole, num_threads: int | None = None
) -> None:
    """Fill every parameter and computed buffer of the model, in place.

    Matrices are normal with standard deviation `model.init_std(name)`; one-dimensional parameters
    are 0 (biases) or 1 (norm weights). A tied weight is drawn once, under its first name. held:
    what this process has of a parameter, and its indices along each dimension. num_threads: null =
    torch's own.
    """
    with ThreadPoolExecutor(num_threads or torch.get_num_threads()) as pool:
        filling = []
        for name, parameter in model.named_parameters():
            values = parameter.detach()
            local, indices = held(values)
            if values.dim() == 1:
                local.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            fill = partial(_fill, local, indices, name, values.shape, model.init_std(name), seed)
            portions = _portions(indices[0], values.shape)
            filling += [pool.submit(fill, start, end) for start, end in portions]
        for each in filling:
            each.result()
    model.reset_buffers()


def draw_rows(
    name: str,
    shape: Sequence[int],
    std: float,
    seed: int,
    rows: Sequence[int] | Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Rows of the initial value of parameter `name` of global `shape`, fp32, drawn into `out`."""
    size = rows_per_block(shape)
    index = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
    drawn = out
    if drawn is None:
        drawn = torch.empty(len(index), *shape[1:], dtype=torch.float32, device="cpu")
    consecutive = bool((index.diff() == 1).all())
    start = 0
    for block, count in _runs(index, size):
        here, first = slice(start, start + count), block * size
        if consecutive and count == min(size, shape[0] - first):
            draw_block(name, shape, std, seed, block, out=drawn[here])
        else:
            drawn[here] = draw_block(name, shape, std, seed, block)[index[here] - first]
        start += count
    return drawn


def draw_block(
    name: str, shape: Sequence[int], std: float, seed: int, block: int, *, out: Tensor | None = None
) -> Tensor:
    """Rows block * n to (block + 1) * n of the parameter, n = rows_per_block(shape)."""
    if out is None:
        size = rows_per_block(shape)
        rows = min(size, shape[0] - block * size)
        out = torch.empty(rows, *shape[1:], dtype=torch.float32, device="cpu")
    digest = blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
    return out.normal_(0.0, std, generator=generator)


def rows_per_block(shape: Sequence[int]) -> int:
    """Rows that share a generator: about 256 KiB, or one expert of a stack."""
    if len(shape) > 2:
        return 1
    return max(1, VALUES_PER_BLOCK // max(1, math.prod(shape[1:])))


def _runs(rows: Tensor, size: int) -> list[tuple[int, int]]:
    """(block, how many rows of it follow one another), in order."""
    blocks, counts = torch.unique_consecutive(rows // size, return_counts=True)
    return list(zip(blocks.tolist(), counts.tolist(), strict=True))


def _portions(rows: Tensor, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of whole blocks of rows that are worth a thread's while."""
    start = end = 0
    for _, count in _runs(rows, rows_per_block(shape)):
        end += count
        if (end - start) * math.prod(shape[1:]) >= VALUES_PER_PORTION:
            yield start, end
            start = end
    if start < end:
        yield start, end


def _fill(
    local: Tensor,
    indices: list[Tensor],
    name: str,
    shape: Sequence[int],
    std: float,
    seed: int,
    start: int,
    end: int,
) -> None:
    """Draw rows start to end of those held: in place if they are whole, else cut and copied."""
    here, rows = local[start:end], indices[0][start:end]
    whole_rows = here.is_contiguous() and here.shape[1:] == tuple(shape[1:])
    as_drawn = here.device.type == "cpu" and here.dtype == torch.float32 and whole_rows
    drawn = draw_rows(name, shape, std, seed, rows, out=here if as_drawn else None)
    if not as_drawn:
        here.copy_(select(drawn, indices[1:], first=1))


def select(values: Tensor, indices: Sequence[Tensor], *, first: int = 0) -> Tensor:
    """What the indices name along each dimension from `first` on."""
    for dim, index in enumerate(indices, start=first):
        if len(index) < values.shape[dim]:
            values = values.index_select(dim, index)
    return values
