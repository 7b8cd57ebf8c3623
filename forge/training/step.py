"""One optimizer update: accumulate, clip, step; or no step where loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forge.data.loader import Batch, Step
from forge.models.balance import Balance
from forge.objectives.losses import Losses
from forge.parallel.fsdp import reduce_in_backward
from forge.parallel.gradients import clip
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks


@dataclass(kw_only=True)
class StepOutput:
    """What one update gives, still on the device.

    loss: what was minimised, per target token of the step. grad_norm: global L2 norm before
    clipping. skipped: bool, whether weights and optimizer were left as they were because one of the
    two is not finite. sums: sums over target tokens, by name. means: other values of the step, by
    name. requests: number of ranks with a request (`forge.training.stopping`).
    """

    n_tokens: int
    n_targets: int
    lr: float
    loss: Tensor
    grad_norm: Tensor
    skipped: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    requests: Tensor = field(default_factory=lambda: torch.zeros(()))


class Update:
    """Forward, backward and update for one step.

    On CUDA nothing in here waits for the device with an optimizer that can skip an update by
    itself, as torch's fused ones can; with any other, each step waits once, to see whether loss and
    gradient are finite.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        objective: Callable[[Any, Any], Losses],
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        device: torch.device,
        clip_norm: float,
        scaler: torch.amp.GradScaler | None = None,
        ranks: Ranks | None = None,
        max_steps: int = 1,
        reduce_each: bool = False,
    ) -> None:
        """scaler: of losses, in fp16. max_steps: of the run, for the schedule of routers' biases.
        reduce_each: whether each micro-batch's gradient is reduced by itself.

        Set later: before_write, called in each update before weights and optimizer state change;
        request, whether this rank has one for the others after the step.
        """
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.schedule, self.device, self.clip_norm = schedule, device, clip_norm
        self.ranks, self.reduce_each = ranks or Ranks(), reduce_each
        self.scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        self.named = [(name, p) for name, p in model.named_parameters() if p in trained]
        self.counted = model.counted if isinstance(model, Pipeline) else lambda _: True
        self.balance = Balance(model, max_steps=max_steps)
        on_gpu = all(p.device.type == "cuda" for _, p in self.named)  # and not offloaded
        self.skips_on_device = on_gpu and getattr(optimizer, "_step_supports_amp_scaling", False)
        self.on_gradients: Callable[[], None] | None = None
        self.before_write: Callable[[], None] = lambda: None
        self.request: Callable[[], bool] = lambda: False

    def __call__(self, step: Step, number: int) -> StepOutput:
        """Update number `number`, counted from 0.

        Every micro-batch counts by its target tokens: the loss is the sum over the step's targets
        divided by their number, however they are spread over micro-batches.
        """
        lr = self._set_lr(number)
        loss, sums = self._accumulate(step)
        scaler = self.scaler
        if scaler.is_enabled():
            scaler.unscale_(self.optimizer)
        several = self.ranks.size > 1
        request = float(several and self.request())
        grad_norm, requests = clip(
            self.named, self.clip_norm, counted=self.counted, spread=several, also=request
        )
        grad_norm = grad_norm.to(loss.device)
        if self.on_gradients is not None:
            self.on_gradients()
        bad_loss, bad_gradient = ~loss.isfinite(), ~grad_norm.isfinite()
        self.before_write()
        bad = bad_loss | bad_gradient
        self._step_unless(bad)
        means: dict[str, Tensor] = {}
        if self.balance:
            routing = self.balance.end(number, skipped=bad, total=self.ranks.total)
            sums, means = sums | routing.sums, routing.means
            if step.n_targets != step.n_tokens:  # these are of tokens, and divided by targets
                share = step.n_targets / step.n_tokens
                sums |= {name: value * share for name, value in routing.sums.items()}
        if scaler.is_enabled():
            # An overflow is the scaler's business, as long as there is a smaller scale to try.
            bad_gradient = bad_gradient & (scaler.scale(torch.ones_like(loss)) < 1)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutput(
            n_tokens=step.n_tokens,
            n_targets=step.n_targets,
            lr=lr,
            loss=loss,
            grad_norm=grad_norm,
            skipped=bad_loss | bad_gradient,
            sums=sums,
            means=means,
            requests=requests,
        )

    def _set_lr(self, number: int) -> float:
        factor = self.schedule(number)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        return self.peaks[0] * factor

    def _accumulate(self, step: Step) -> tuple[Tensor, dict[str, Tensor]]:
        weight = 1.0 / max(step.n_targets, 1)
        batches = [self._mine(batch) for batch in step.batches]
        if self.balance:
            scale: float | Tensor = 1.0 / max(step.n_tokens, 1)  # every token is routed
            if self.scaler.is_enabled():
                scale = self.scaler.scale(torch.full((), scale, device=self.device))
            self.balance.begin(scale)
        if isinstance(self.model, Pipeline):
            loss, sums = self.model.step(batches, self.objective, weight)
        else:
            loss, sums = self._one_after_another(batches, weight)
        if self.ranks.size > 1:
            values = [loss, *(value.to(loss.dtype) for value in sums.values())]
            totals = self.ranks.total(torch.stack(values))
            loss, sums = totals[0], dict(zip(sums, totals[1:], strict=True))
        return loss, sums

    def _one_after_another(
        self, batches: Sequence[Batch], weight: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sums: dict[str, Tensor] = {}
        total, scaler = torch.zeros((), device=self.device), self.scaler
        for batch in batches:
            losses = self.objective(self.model, batch)
            reduce_in_backward(self.model, last=batch is batches[-1], each=self.reduce_each)
            loss = losses.total * weight
            (scaler.scale(loss) if scaler.is_enabled() else loss).backward()
            total = total + loss.detach()
            for name, value in losses.sums.items():
                sums[name] = sums[name] + value if name in sums else value
        return total, sums

    def _mine(self, batch: Batch) -> Batch:
        wait = self.device.type == "cpu"
        moved = ((key, each.to(self.device, non_blocking=not wait)) for key, each in batch.items())
        return {name: self.ranks.own_part(tensor) for name, tensor in moved}

    def _step_unless(self, bad: Tensor) -> None:
        """The optimizer's step; where `bad` is true, weights and state keep every bit."""
        if not self.skips_on_device:
            if not bad.item():
                self.optimizer.step()
            return
        # As torch.amp.GradScaler does it; the optimizer's kernel returns where found_inf is 1.
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        try:
            self.optimizer.step()
        finally:
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]
