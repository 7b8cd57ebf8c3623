"""The values of one update, still on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

OF = ("loss", "gradient norm")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Loss and gradient norm of a step, compared with earlier steps, still on the device.

    Each [2]: values, their means and standard deviations over the steps before, and spikes, whether
    each value is a spike.
    """

    values: Tensor
    means: Tensor
    deviations: Tensor
    spikes: Tensor

    def told(self) -> str:
        """Describe the spikes in words; waits for the device."""
        rows = zip(OF, *(x.tolist() for x in vars(self).values()), strict=True)
        return " and ".join(
            f"its {name} of {value:.4g} is a spike, of {mean:.4g} and a deviation of "
            f"{deviation:.3g} before it"
            for name, value, mean, deviation, is_spike in rows
            if is_spike
        )


@dataclass(kw_only=True)
class StepOutput:
    """Values of one update, still on the device.

    loss: the minimised value, per target token of the step. grad_norm: global L2 norm before
    clipping. skipped: bool, whether weights and optimizer kept their values, because loss or norm
    is not finite or, in `judged`, a spike, or for want of a target. sums: sums over target tokens,
    by name. means: other values of the step, by name. requests: number of ranks with a request
    (`callbacks.stopping`). factor: still to be multiplied into gradients.
    """

    n_tokens: int
    n_targets: int
    n_places: int
    lr: float
    loss: Tensor
    grad_norm: Tensor
    skipped: Tensor
    judged: Judged | None = None
    sums: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    requests: Tensor = field(default_factory=lambda: torch.zeros(()))
    factor: Tensor | None = None
