"""The loss of a value head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forge.config.objectives.grpo import GRPO as Section


class ValueLoss(NamedTuple):
    """The loss of each token, and whether it is that of the limited value: [rows, seq]."""

    loss: Tensor
    is_clipped: Tensor


def value_loss(section: Section, values: Tensor, old: Tensor, returns: Tensor) -> ValueLoss:
    """max((V - R)^2, (limited V - R)^2) / 2, V limited to objective.cliprange_value around the
    value at the rollout, as in TRL's PPO. [rows, seq]
    """
    old, returns = old.to(values.dtype), returns.to(values.dtype)
    plain = (values - returns).square()
    if not section.cliprange_value:
        return ValueLoss(plain / 2, torch.zeros_like(plain, dtype=torch.bool))
    width = section.cliprange_value
    limited = (values.clamp(old - width, old + width) - returns).square()
    return ValueLoss(torch.max(plain, limited) / 2, limited > plain)
