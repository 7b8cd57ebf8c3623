"""Experts: feed-forward layers of equal shape, with all weights of a projection in one tensor."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import has_expert_bias
from forge.models.feed_forward import Activation, kept_names
from forge.models.grouped import group_of_rows, grouped_mm, looped_mm, rows_of

log = logging.getLogger(__name__)
Product = Callable[[Tensor, str], Tensor]
"""x: [n, in], name of a weight: [experts, out, in] -> [n, out]: rows times the matrix of their
expert, plus the expert's bias.
"""

BLACKWELL = (10, 0)
"""From this compute capability on the grouped kernel gives experts without rows a wrong gradient
(https://github.com/pytorch/pytorch/issues/172439).
"""
ALIGNMENT = 16
"""Rows of a grouped product must be a multiple of so many bytes."""
INDEXED = 1 << 31
"""Elements of a tensor that the grouped kernel reaches
(https://github.com/pytorch/torchtitan/issues/1932).
"""


class Experts(nn.Module):
    """Experts `w_down(f(w_gate(x)) * w_up(x))`, or without a gate `w_down(f(w_up(x)))`.

    w_gate, w_up: [experts, hidden, dim]. w_down: [experts, dim, hidden]. Biases: [experts, out].
    partly_filled: whether rows may follow those of the last expert, which the kernel leaves as they
    are in memory.
    """

    partly_filled = False
    reads_every_row = False
    """Whether any row enters a gradient of weights, even after the last expert's."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        experts, hidden, dim = section.moe.num_experts, section.expert_hidden_dim, section.dim
        self.activation = Activation(section)
        self.kernel, self.gated = section.moe.kernel, section.is_gated
        self.kept_names = {
            matrix: f"moe_{name}" for matrix, name in kept_names(gated=self.gated).items()
        }
        self.w_gate = nn.Parameter(torch.empty(experts, hidden, dim)) if section.is_gated else None
        self.w_up = nn.Parameter(torch.empty(experts, hidden, dim))
        self.w_down = nn.Parameter(torch.empty(experts, dim, hidden))
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        biased = has_expert_bias(section)
        self.w_gate_bias = _biases(experts, hidden) if biased and self.gated else None
        self.w_up_bias = _biases(experts, hidden) if biased else None
        self.w_down_bias = _biases(experts, dim) if biased else None

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], sorted by expert; counts: [experts] int64, rows of an expert -> [n, dim]."""
        expert = None if self.w_down_bias is None else group_of_rows(counts, len(x))
        multiply = self.multiply(x, counts)
        filled = self.filled(x, counts) if self.reads_every_row or expert is not None else None

        def product(rows: Tensor, name: str) -> Tensor:
            weight, bias = self._matrix(name)
            output = self.beside(name, rows, only(filled, multiply(rows, weight)), counts)
            if bias is not None and expert is not None:
                output = output + rows_of(bias, expert)
            return only(filled, output)

        return self.expert(x, product)

    def filled(self, x: Tensor, counts: Tensor) -> Tensor | None:
        """Whether each row of x is an expert's, [n, 1]; null = all rows are."""
        if not self.partly_filled:
            return None
        return (torch.arange(len(x), device=x.device) < counts.sum()).unsqueeze(1)

    def equal(self, x: Tensor) -> Tensor:
        """Run experts with equal numbers of rows: [experts, rows, dim] -> [experts, rows, dim]."""

        def product(rows: Tensor, name: str) -> Tensor:
            weight, bias = self._matrix(name)
            output = self.beside(name, rows, self.multiply_equal(rows, weight))
            return output if bias is None else output + bias.unsqueeze(1)

        return self.expert(x, product)

    def with_weights(self, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return run(*inputs), which may run the experts several times: weights that lie on several
        ranks are gathered once.
        """
        return run(*inputs)

    def multiply(self, x: Tensor, counts: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The function that multiplies rows, as in `forward`, by weights [experts, out, in]."""
        if not self._grouped(x):
            return lambda rows, weight: looped_mm(rows, weight.transpose(1, 2), counts)
        # The kernel takes ends of groups, in int32, and so never waits for the device.
        ends = counts.cumsum(0, dtype=torch.int32)
        return lambda rows, weight: grouped_mm(rows, weight.transpose(1, 2), ends)

    def beside(self, name: str, x: Tensor, product: Tensor, counts: Tensor | None = None) -> Tensor:
        """Add an adapter's output to the product of rows with the weight `name`; here without an
        adapter. counts: as in `forward`; null = equally many rows of each expert.
        """
        return product

    def multiply_equal(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply equally many rows of each expert, [experts, rows, in], by the weights."""
        return torch.bmm(x, weight.transpose(1, 2))

    def choose_kernel(self, capability: tuple[int, int]) -> None:
        """Avoid the grouped kernel on a GPU of a compute capability with wrong gradients."""
        if capability < BLACKWELL:
            return
        if self.kernel == "auto":
            self.kernel = "loop"
        elif self.kernel == "grouped":
            log.warning(
                "model.moe.kernel=grouped gives experts without tokens a wrong gradient on this "
                "GPU; auto takes the loop"
            )

    def expert(self, x: Tensor, product: Product) -> Tensor:
        """Run the experts on x: rows of all experts in the layout of `product`."""
        up = product(x, "w_up")
        gate = product(x, "w_gate") if self.gated else None
        return product(self.activation(up, gate), "w_down")

    def _matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        return getattr(self, name), getattr(self, f"{name}_bias")

    def _grouped(self, x: Tensor) -> bool:
        """Whether the grouped kernel multiplies all experts.

        The kernel needs rows of whole 16 bytes (https://github.com/pytorch/pytorch/issues/172440),
        on CUDA bf16, on a CPU no fp64. The compiler takes the kernel for bf16 only (torch 2.13).
        """
        if len(x) == 0:  # https://github.com/pytorch/pytorch/issues/192497
            return False
        if x.is_cuda and len(x) * max(self.w_down.shape[1:]) >= INDEXED:
            return False
        if self.kernel != "auto":
            return self.kernel == "grouped"
        if any(size * x.element_size() % ALIGNMENT for size in self.w_down.shape[1:]):
            return False
        if x.dtype == torch.bfloat16:
            return True
        eager = not torch.compiler.is_compiling()
        return x.device.type == "cpu" and x.dtype != torch.float64 and eager


def only(filled: Tensor | None, x: Tensor) -> Tensor:
    """x, and its gradient, with 0 in rows that are not filled; null = all are filled."""
    return x if filled is None else x.where(filled, 0)


def _biases(experts: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(experts, width))
