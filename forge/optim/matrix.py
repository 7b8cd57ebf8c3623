"""A parameter that is a matrix or a stack of matrices, and where its parts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Compute = Callable[["Matrix", Tensor], tuple[Tensor, list[Tensor]]]
"""Of a matrix or a stack: values -> the result, of equal shape, and tensors kept on all ranks."""
Extras = Callable[["Matrix"], list[tuple[int, ...]]]
"""The shapes of the tensors kept on all ranks."""
Done = Callable[["Matrix", Tensor, list[Tensor]], None]
"""Takes the local part of the result, and the tensors kept on all ranks."""


@dataclass(eq=False)
class Matrix:
    """A parameter on this rank: [..., rows, columns].

    shape: of the whole matrices computed by a rank of the group. boxes: for each rank of the group
    the rows and columns held, as slices or indices, and the replica. group: None = this rank has
    the whole matrix.
    """

    parameter: Tensor
    shape: tuple[int, ...]
    group: dist.ProcessGroup | None = None
    boxes: list[tuple[Any, Any, Any]] = field(default_factory=list)
    owner: int = 0

    @property
    def cost(self) -> int:
        """The cost of orthogonalisation, up to a factor: products of the smaller side."""
        *stack, rows, columns = self.shape
        return torch.Size(stack).numel() * rows * columns * min(rows, columns)

    def part(self, values: Tensor, rank: int) -> Tensor:
        """A rank's part of the whole matrix: a view if possible."""
        rows, columns, _ = self.boxes[rank]
        return values[..., rows, :][..., columns]

    def numel(self, rank: int) -> int:
        """Number of values held by a rank."""
        rows, columns, _ = self.boxes[rank]
        return torch.Size(self.shape[:-2]).numel() * length_of(rows) * length_of(columns)

    def sends(self, rank: int) -> int:
        """Number of values sent by a rank to the owner: 0 outside the owner's replica."""
        same_replica = self.boxes[rank][2] == self.boxes[self.owner][2]
        return self.numel(rank) if same_replica else 0


def length_of(index: slice | Tensor) -> int:
    return index.stop - index.start if isinstance(index, slice) else len(index)
