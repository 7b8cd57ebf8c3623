"""Cross-entropy and z-loss from logits, summed over the unmasked targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.data import IGNORE_INDEX


class CrossEntropySums(NamedTuple):
    """Scalars: total = ce + z_loss_weight * z_loss, with a graph; ce and z_loss without."""

    total: Tensor
    ce: Tensor
    z_loss: Tensor


def cross_entropy(
    logits: Tensor, targets: Tensor, *, z_loss_weight: float = 0.0
) -> CrossEntropySums:
    """Sums over targets other than -100 of cross-entropy and of the squared log-partition.

    logits: [..., vocab], half precision is raised to fp32. targets: [...] int64. With all targets
    masked total is 0, and so is its gradient.
    """
    logits = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    targets = targets.flatten()
    ce = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    if z_loss_weight == 0:
        return CrossEntropySums(ce, ce.detach(), ce.new_zeros(()))
    log_partition = logits.logsumexp(-1).masked_fill(targets == IGNORE_INDEX, 0)
    z_loss = log_partition.square().sum()
    return CrossEntropySums(ce + z_loss_weight * z_loss, ce.detach(), z_loss.detach())
