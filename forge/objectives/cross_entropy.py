"""Cross-entropy and z-loss from logits, summed over the unmasked targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.data import IGNORE_INDEX


class CrossEntropySums(NamedTuple):
    """Sums of cross-entropy: total = (1 - smoothing) * ce + smoothing * uniform + z_loss_weight *
    z_loss, a scalar with a graph; the other scalars without. uniform: cross-entropy of a uniform
    target. each: the summands of ce, [targets], without a graph; 0 unless requested.
    """

    total: Tensor
    ce: Tensor
    z_loss: Tensor
    each: Tensor
    uniform: Tensor


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    z_loss_weight: float = 0.0,
    each: bool = False,
    weights: Tensor | None = None,
    smoothing: float = 0.0,
) -> CrossEntropySums:
    """Sum cross-entropy and the squared log-partition over targets other than -100.

    logits: [..., vocab], half precision is raised to fp32. targets: [...] int64. With all targets
    masked the total and the gradient are 0. each: return the cross-entropy of each target too.
    weights: of the summands, [...]. smoothing: of labels (arXiv:1512.00567, section 7).
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten()
    reduction = "none" if each or weights is not None else "sum"
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction=reduction)
    if weights is not None:
        weights = weights.flatten().to(losses.dtype)
        losses = losses * weights
    ce, zero = losses if reduction == "sum" else losses.sum(), losses.new_zeros(())
    parts = losses.detach() if each else zero
    if z_loss_weight == 0 and smoothing == 0:
        return CrossEntropySums(ce, ce.detach(), zero, parts, zero)
    total, z_loss, uniform = (1 - smoothing) * ce, zero, zero
    log_partition = logits.logsumexp(-1)

    def summed(values: Tensor) -> Tensor:
        values = values.masked_fill(targets == IGNORE_INDEX, 0)
        return (values if weights is None else values * weights).sum()

    if z_loss_weight:
        z_loss = summed(log_partition.square())
        total = total + z_loss_weight * z_loss
    if smoothing:
        uniform = summed(log_partition - logits.mean(-1))
        total = total + smoothing * uniform
    return CrossEntropySums(total, ce.detach(), z_loss.detach(), parts, uniform.detach())
