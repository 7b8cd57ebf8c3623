"""Cross-entropy and z-loss from logits, summed over the unmasked targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.data import IGNORE_INDEX


class CrossEntropySums(NamedTuple):
    """Scalars: total = ce + z_loss_weight * z_loss, with a graph; ce and z_loss without. each: the
    summands of ce, [targets], without a graph; empty where they were not asked for.
    """

    total: Tensor
    ce: Tensor
    z_loss: Tensor
    each: Tensor


def cross_entropy(
    logits: Tensor, targets: Tensor, *, z_loss_weight: float = 0.0, each: bool = False
) -> CrossEntropySums:
    """Sums over targets other than -100 of cross-entropy and of the squared log-partition.

    logits: [..., vocab], half precision is raised to fp32. targets: [...] int64. With all targets
    masked total is 0, and so is its gradient. each: give the cross-entropy of each target too.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten()
    how = "none" if each else "sum"
    losses = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction=how)
    ce, parts = losses.sum(), losses.detach() if each else losses.new_empty(0)
    if z_loss_weight == 0:
        return CrossEntropySums(ce, ce.detach(), ce.new_zeros(()), parts)
    log_partition = logits.logsumexp(-1).masked_fill(targets == IGNORE_INDEX, 0)
    z_loss = log_partition.square().sum()
    return CrossEntropySums(ce + z_loss_weight * z_loss, ce.detach(), z_loss.detach(), parts)
