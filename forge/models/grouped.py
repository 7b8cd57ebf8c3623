"""Products of rows with the matrix of their group, in one kernel or in a loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_mm(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """Multiply x: [n, in], sorted by group, by weight: [groups, in, out] in a single kernel.
    offsets: [groups] int32, the end of each group.
    """
    # Public in newer versions of torch, private before.
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm  # type: ignore[attr-defined]
    return product(x, weight, offs=offsets)


@torch.library.custom_op(
    "forge::looped_mm", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor counts) -> Tensor"
)
def looped_mm(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Multiply group by group, in any type; counts: [groups], rows of each group. Rows after the
    last group give 0.

    A custom operator, opaque to a compiler: sizes depend on data. Waits for the device on CUDA.
    """
    *parts, rest = _split(x, counts.tolist())
    products = [part @ matrix for part, matrix in zip(parts, weight.unbind(), strict=True)]
    return torch.cat([*products, rest.new_zeros(len(rest), weight.shape[2])])


@looped_mm.register_fake
def _(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[2])


@torch.library.custom_op(
    "forge::looped_mm_of_rows",
    mutates_args=(),
    schema="(Tensor x, Tensor y, Tensor counts) -> Tensor",
)
def looped_mm_of_rows(x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Multiply x: [n, in] and y: [n, out] group by group, x.T @ y -> [groups, in, out]."""
    sizes = counts.tolist()
    pairs = zip(_split(x, sizes)[:-1], _split(y, sizes)[:-1], strict=True)
    return torch.stack([x_part.t() @ y_part for x_part, y_part in pairs])


@looped_mm_of_rows.register_fake
def _(x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty(len(counts), x.shape[1], y.shape[1])


def _split(x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """The rows of each group, and the rows after the last group."""
    return x.split([*sizes, len(x) - sum(sizes)])


def group_of_rows(counts: Tensor, rows: int) -> Tensor:
    """The group of each row: counts: [groups], rows of each group -> [rows] int64. Rows after the
    last group count as its rows.
    """
    row = torch.arange(rows, device=counts.device)
    return torch.searchsorted(counts.cumsum(0), row, right=True).clamp_(max=len(counts) - 1)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Look up table: [groups, out] by index: [n], the group of each row -> [n, out].

    Unlike in plain indexing the gradient is summed in a fixed order, and fast on a CPU.
    """
    return _Rows.apply(table, index)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.groups = len(table)
        return table[index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        # A one-hot product instead of index_add: a fixed order of the sum.
        groups = torch.arange(ctx.groups, device=index.device)
        return (groups.unsqueeze(1) == index).to(grad.dtype) @ grad, None


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, counts = ctx.saved_tensors
    by_x = looped_mm(grad, weight.transpose(1, 2), counts) if ctx.needs_input_grad[0] else None
    return by_x, looped_mm_of_rows(x, grad, counts) if ctx.needs_input_grad[1] else None, None


looped_mm.register_autograd(_gradients, setup_context=_keep)
