"""Initial weights that depend on the seed and a parameter's name and shape, and on no layout.

A parameter is filled in blocks of rows, each block drawn whole, on the CPU and in fp32, from the
block's own generator, so that any rank can make just its own rows, equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from forge.config.model.tensors import BIAS, ByDepth, Drawn, LogUniform, TensorSpec
from forge.tensors.local import select
from forge.tensors.threads import pool

VALUES_PER_BLOCK = 65536
VALUES_PER_PORTION = 1 << 21
Held = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


def _complete(values: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A complete tensor, and all indices along each dimension."""
    return values.detach(), [torch.arange(size) for size in values.shape]


def init_weights(
    model: Any,
    seed: int,
    *,
    held: Held = _complete,
    but: Container[str] = (),
    num_threads: int | None = None,
) -> None:
    """Fill every parameter and computed buffer of the model, in place.

    Matrices are drawn from `model.init_range(name)`, if any, else normal with standard deviation
    `model.init_std(name)`; vectors have the value `model.init_value(name)`, or are drawn from that
    distribution; without the method 0 (biases) and 1 (norm weights). A tied weight is drawn once,
    by its first name. A model with `initial_values(seed)`, whole tensors by name, gets these. held:
    this rank's part of a parameter, and the part's indices along each dimension. but: names of
    parameters to leave out. num_threads: null = torch's own.
    """
    if initial_values := getattr(model, "initial_values", None):
        values = initial_values(seed)
        for name, parameter in model.named_parameters():
            local, indices = held(parameter)
            local.copy_(select(values[name], indices))
        model.reset_buffers()
        return
    with pool(num_threads or torch.get_num_threads()) as threads:
        filling = []
        for name, parameter in model.named_parameters():
            if name in but:
                continue
            local, indices = held(parameter)
            initial = _initial(model, name, parameter.shape, seed)
            if not isinstance(initial, Initial):
                local.fill_(initial)
                continue
            for start, end in initial.portions(indices[0]):
                rows = [indices[0][start:end], *indices[1:]]
                filling.append(threads.submit(_fill, local[start:end], initial, rows))
        for future in filling:
            future.result()
    model.reset_buffers()


def _initial(model: Any, name: str, shape: torch.Size, seed: int) -> Initial | float:
    """The distribution of a parameter, or the value of all elements of a vector."""
    if len(shape) != 1:
        between = getattr(model, "init_range", lambda name: None)(name)
        if between is not None:
            return Initial(name=name, shape=shape, between=between, seed=seed)
        return Initial(name=name, shape=shape, std=model.init_std(name), seed=seed)
    of_vector = getattr(model, "init_value", lambda name: 0.0 if name.endswith("bias") else 1.0)
    value = of_vector(name)
    if not isinstance(value, Drawn):
        return value
    return Initial(name=name, shape=shape, between=value, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Initial:
    """The initial values of a parameter, by its global shape: normal, or `between`."""

    name: str
    shape: Sequence[int]
    seed: int
    std: float = 0.0
    between: Drawn | None = None

    @property
    def rows_per_block(self) -> int:
        """Rows that share a generator: about 256 KiB, or one expert of a stack."""
        if len(self.shape) > 2:
            return 1
        return max(1, VALUES_PER_BLOCK // max(1, math.prod(self.shape[1:])))

    def rows(self, rows: Sequence[int] | Tensor, *, out: Tensor | None = None) -> Tensor:
        """Draw rows by their indices, in fp32, into `out`."""
        size = self.rows_per_block
        index = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
        drawn = self._empty(len(index)) if out is None else out
        consecutive = bool((index.diff() == 1).all())
        start = 0
        for block, count in self._runs(index):
            span, first = slice(start, start + count), block * size
            block_rows = min(size, self.shape[0] - first)
            # Blocks are drawn whole: a generator gives a value only after all values before it.
            if consecutive and count == block_rows:
                self._draw(block, drawn[span])
            else:
                drawn[span] = self._draw(block, self._empty(block_rows))[index[span] - first]
            start += count
        return drawn

    def portions(self, rows: Tensor) -> Iterator[tuple[int, int]]:
        """Ranges (start, end) of whole blocks of rows, each large enough for a thread."""
        start = end = 0
        for _, count in self._runs(rows):
            end += count
            if (end - start) * math.prod(self.shape[1:]) >= VALUES_PER_PORTION:
                yield start, end
                start = end
        if start < end:
            yield start, end

    def _runs(self, rows: Tensor) -> list[tuple[int, int]]:
        """Runs of rows of the same block, in order: (block, length of the run)."""
        blocks = rows // self.rows_per_block
        blocks, counts = torch.unique_consecutive(blocks, return_counts=True)
        return list(zip(blocks.tolist(), counts.tolist(), strict=True))

    def _empty(self, rows: int) -> Tensor:
        return torch.empty(rows, *self.shape[1:], dtype=torch.float32, device="cpu")

    def _draw(self, block: int, out: Tensor) -> Tensor:
        digest = blake2b(f"{self.seed}/{self.name}/{block}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
        if self.between is not None:
            out.uniform_(*self.between, generator=generator)
            return out.log_() if isinstance(self.between, LogUniform) else out
        return out.normal_(0.0, self.std, generator=generator)


def _fill(here: Tensor, initial: Initial, indices: list[Tensor]) -> None:
    """Draw this rank's rows: in place for rows of full width, else cut and copied."""
    has_full_rows = here.is_contiguous() and here.shape[1:] == tuple(initial.shape[1:])
    as_drawn = here.device.type == "cpu" and here.dtype == torch.float32 and has_full_rows
    drawn = initial.rows(indices[0], out=here if as_drawn else None)
    if not as_drawn:
        here.copy_(select(drawn, indices[1:], first=1))


class TableValues:
    """Initial values of a model's parameters, as the table of its tensors states them."""

    table: dict[str, TensorSpec]
    section: Any

    def init_std(self, name: str) -> float:
        """Initial standard deviation of parameter `name`: init_std, times 1/sqrt(2 * n_layers) for
        an output into the residual stream (GPT-2; Radford et al. 2019, section 2.3); 0 for biases
        of experts.
        """
        tensor = self.table[name]
        if tensor.std is not None:
            return tensor.std
        if tensor.role == BIAS:
            return 0.0
        if self.section.init_scale_residual and tensor.residual:
            return self.section.init_std / math.sqrt(2 * self.section.n_layers)
        return self.section.init_std

    def init_range(self, name: str) -> Drawn | None:
        """The distribution of the initial values of a matrix; None = normal, with init_std."""
        initial = self.table[name].initial
        return initial if isinstance(initial, Drawn) else None

    def init_value(self, name: str) -> float | Drawn:
        """The initial value of a vector, or the distribution of the values."""
        initial = self.table[name].initial
        assert not isinstance(initial, ByDepth), name
        return initial
