"""The values of one update, still on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

OF = ("loss", "gradient norm")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Of a step, still on the device, each [2]: loss and gradient norm, their means and standard
    deviations over the steps before it, and whether it is a spike.
    """

    values: Tensor
    means: Tensor
    deviations: Tensor
    spikes: Tensor

    def told(self) -> str:
        """What is a spike, in words; waits for the device."""
        rows = zip(OF, *(x.tolist() for x in vars(self).values()), strict=True)
        return " and ".join(
            f"its {name} of {value:.4g} is a spike, of {mean:.4g} and a deviation of "
            f"{deviation:.3g} before it"
            for name, value, mean, deviation, is_spike in rows
            if is_spike
        )


@dataclass(kw_only=True)
class StepOutput:
    """What one update gives, still on the device.

    loss: what was minimised, per target token of the step. grad_norm: global L2 norm before
    clipping. skipped: bool, whether weights and optimizer were left as they were, because one of
    the two is not finite or, as `judged` has it, a spike, or there is no target. sums: sums over
    target tokens, by name. means: other values of the step, by name. requests: number of ranks with
    a request (`callbacks.stopping`). factor: by which gradients are still to be multiplied.
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
