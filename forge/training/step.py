"""One optimizer update: accumulate, clip, step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forge.data.loader import Batch, Step
from forge.objectives.losses import Losses
from forge.training.device import Autocast


@dataclass(kw_only=True)
class StepOutput:
    """What one update leaves behind, still on the device.

    sums: sums over the step's target tokens, by name. grad_norm: global L2 norm before clipping.
    """

    n_targets: int
    lr: float
    grad_norm: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)


class Update:
    """Forward, backward and update for one step; nothing in here waits for the device."""

    def __init__(
        self,
        *,
        model: nn.Module,
        objective: Callable[[Any, Any], Losses],
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        autocast: Autocast,
        clip_norm: float,
    ) -> None:
        self.model, self.objective, self.optimizer, self.schedule = model, objective, optimizer, schedule
        self.autocast, self.clip_norm = autocast, clip_norm
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def __call__(self, step: Step, number: int) -> StepOutput:
        """Update number `number`, counted from 0.

        Every micro-batch counts by its target tokens: the loss is the sum over the step's targets divided by
        their number, however they are spread over micro-batches.
        """
        lr = self._set_lr(number)
        sums = self._accumulate(step)
        scaler = self.autocast.scaler
        if scaler.is_enabled():
            scaler.unscale_(self.optimizer)
        grad_norm = self._clip()
        if scaler.is_enabled():
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutput(n_targets=step.n_targets, lr=lr, grad_norm=grad_norm, sums=sums)

    def _set_lr(self, number: int) -> float:
        factor = self.schedule(number)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        return self.peaks[0] * factor

    def _accumulate(self, step: Step) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        scaler, weight = self.autocast.scaler, 1.0 / max(step.n_targets, 1)
        for batch in _on(self.autocast.device, step.batches):
            with self.autocast():
                losses = self.objective(self.model, batch)
            loss = losses.total * weight
            (scaler.scale(loss) if scaler.is_enabled() else loss).backward()
            for name, value in losses.sums.items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def _clip(self) -> Tensor:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip_norm, norm)
        return norm


def _on(device: torch.device, batches: Sequence[Batch]) -> Sequence[Batch]:
    if device.type == "cpu":
        return batches
    return [Batch(*(tensor.to(device, non_blocking=True) for tensor in batch)) for batch in batches]
