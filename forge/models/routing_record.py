"""The record of a router over a step: auxiliary losses enter the gradient, and load is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SUMS = ("tokens", "entropy", "dropped", "aux_loss", "sequence_aux_loss", "router_z_loss")


class RoutingRecord(nn.Module):
    """Counts and sums of a layer over the micro-batches of a step, in unsaved buffers.

    counts: [experts] int64, assignments, dropped ones too. sums: [len(SUMS)], over tokens, or as
    many as another layer has. scale: factor of the auxiliary losses: 1 / target tokens of the step,
    times a loss scale.
    """

    counts: Tensor
    sums: Tensor
    scale: Tensor

    def __init__(self, num_experts: int, sums: int = len(SUMS)) -> None:
        super().__init__()
        counts = torch.zeros(num_experts, dtype=torch.int64)
        self.register_buffer("counts", counts, persistent=False)
        self.register_buffer("sums", torch.zeros(sums), persistent=False)
        self.register_buffer("scale", torch.zeros(()), persistent=False)

    def attach(self, y: Tensor, loss: Tensor, counts: Tensor, sums: Tensor) -> Tensor:
        """Return y with a backward pass that also gives `loss` the gradient `scale`, and adds to
        the record.

        No layer, stage or compiled block has to return the loss or the counts. Every micro-batch
        passes backward once, while a forward pass may be repeated or be an evaluation.
        """
        return _Attach.apply(y, loss, counts, sums, self)

    def reset_buffers(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, loss: Tensor, counts: Tensor, sums: Tensor, record: RoutingRecord
    ) -> Tensor:
        ctx.save_for_backward(counts, sums)
        ctx.loss_dtype = loss.dtype
        # Not by save_for_backward: other micro-batches change the record before this backward.
        ctx.record = record.counts, record.sums, record.scale
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        counts, sums = ctx.saved_tensors
        all_counts, all_sums, scale = ctx.record
        all_counts.add_(counts)
        all_sums.add_(sums)
        # A copy: the next step changes the buffer in place.
        return grad, scale.to(ctx.loss_dtype, copy=True), None, None, None
