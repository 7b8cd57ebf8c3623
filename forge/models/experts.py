"""Experts: feed-forward layers of one shape, their weights packed into one tensor a projection."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig
from forge.models.feed_forward import ACTIVATIONS
from forge.models.grouped import grouped_mm, looped_mm

log = logging.getLogger(__name__)
Multiply = Callable[[Tensor, Tensor], Tensor]
"""x: [n, in], weight: [experts, in, out] -> [n, out]: rows times the matrix of their expert."""

BLACKWELL = (10, 0)
"""From this compute capability on the grouped kernel gives experts without rows a wrong gradient
(https://github.com/pytorch/pytorch/issues/172439).
"""
ALIGNMENT = 16
"""Rows of a grouped product must be a multiple of so many bytes."""


class Experts(nn.Module):
    """Each is `w_down(f(w_gate(x)) * w_up(x))`, or without a gate `w_down(f(w_up(x)))`.

    w_gate, w_up: [experts, hidden, dim]. w_down: [experts, dim, hidden].
    """

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        experts, hidden, dim = section.moe.num_experts, section.expert_hidden_dim, section.dim
        self.activation = ACTIVATIONS[section.activation]
        self.kernel = section.moe.kernel
        self.w_gate = nn.Parameter(torch.empty(experts, hidden, dim)) if section.is_gated else None
        self.w_up = nn.Parameter(torch.empty(experts, hidden, dim))
        self.w_down = nn.Parameter(torch.empty(experts, dim, hidden))
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], sorted by expert; counts: [experts] int64, rows of each -> [n, dim]."""
        weights = self.weights()
        if not self._grouped(x, weights):
            return self._expert(x, weights, lambda rows, weight: looped_mm(rows, weight, counts))
        offsets = counts.cumsum(0, dtype=torch.int32)
        return self._expert(x, weights, lambda rows, weight: grouped_mm(rows, weight, offsets))

    def equal(self, x: Tensor) -> Tensor:
        """The same for equal numbers of rows: [experts, rows, dim] -> [experts, rows, dim]."""
        return self._expert(x, self.weights(), torch.bmm)

    def choose_kernel(self, capability: tuple[int, int]) -> None:
        """Keep away from a kernel that is wrong on a GPU of this compute capability."""
        if capability < BLACKWELL:
            return
        if self.kernel == "auto":
            self.kernel = "loop"
        elif self.kernel == "grouped":
            log.warning(
                "model.moe.kernel=grouped gives experts without tokens a wrong gradient on this "
                "GPU; auto takes the loop"
            )

    def weights(self) -> tuple[Tensor, ...]:
        """(w_gate, w_up, w_down) or, without a gate, (w_up, w_down)."""
        both = (self.w_up, self.w_down)
        return both if self.w_gate is None else (self.w_gate, *both)

    def _expert(self, x: Tensor, weights: tuple[Tensor, ...], multiply: Multiply) -> Tensor:
        *gate, up, down = (weight.transpose(1, 2) for weight in weights)
        hidden = multiply(x, up)
        hidden = self.activation(multiply(x, gate[0])) * hidden if gate else self.activation(hidden)
        return multiply(hidden, down)

    def _grouped(self, x: Tensor, weights: tuple[Tensor, ...]) -> bool:
        """Whether one kernel multiplies all experts.

        It needs rows of whole 16 bytes (https://github.com/pytorch/pytorch/issues/172440), on CUDA
        bf16, on a CPU no fp64. The compiler takes it for bf16 only (torch 2.13).
        """
        if len(x) == 0:  # https://github.com/pytorch/pytorch/issues/192497
            return False
        if self.kernel != "auto":
            return self.kernel == "grouped"
        if any(size * x.element_size() % ALIGNMENT for size in weights[-1].shape[1:]):
            return False
        if x.dtype == torch.bfloat16:
            return True
        eager = not torch.compiler.is_compiling()
        return x.device.type == "cpu" and x.dtype != torch.float64 and eager
