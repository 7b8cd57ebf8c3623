"""Sums of the gradients of micro-batches in fp32, for gradients in 16 bits on one rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from forge.tensors.wide import stored_format


class GradientSums:
    """Adds up gradients of 16 bits in fp32, as FSDP does on many ranks, and rounds each sum once.

    is_last: whether the next backward pass is the step's last; a pass alone stays as it is.
    """

    is_last = True

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.sums: dict[Tensor, Tensor] = {}
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._add)

    @classmethod
    def of(cls, parameters: Iterable[nn.Parameter]) -> GradientSums | None:
        """Sums for the parameters with gradients in 16 bits; None where there are none."""
        halves = [p for p in parameters if p.requires_grad and stored_format(p).itemsize == 2]
        return cls(halves) if halves else None

    @torch.no_grad()
    def _add(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if parameter in self.sums:
            self.sums[parameter] += parameter.grad
        elif not self.is_last:
            self.sums[parameter] = parameter.grad.float()
        else:
            return
        parameter.grad = None
        if self.is_last:
            self._round(parameter)

    def _round(self, parameter: Tensor) -> None:
        parameter.grad = self.sums.pop(parameter).to(stored_format(parameter))

    def finish(self) -> None:
        """Round the sums of parameters without a gradient in the last pass."""
        for parameter in list(self.sums):
            self._round(parameter)
