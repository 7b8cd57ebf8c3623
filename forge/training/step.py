"""One optimizer update: gradients, clip, step; or no step where loss or gradient is not finite, or
a spike, or nothing is learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forge.data.loader import Step
from forge.objectives.objective import Objective
from forge.optim.learning_rate import LearningRate
from forge.optim.together import told
from forge.parallel.gradients import clip_factor, clip_values, norm_of, scale
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.training.backward import Backward
from forge.training.in_backward import InBackward
from forge.training.skipping import skips_on_device, step_unless, takes_factor
from forge.training.spikes import Judged, Spikes
from forge.training.step_modules import StepModules


@dataclass(kw_only=True)
class StepOutput:
    """What one update gives, still on the device.

    loss: what was minimised, per target token of the step. grad_norm: global L2 norm before
    clipping. skipped: bool, whether weights and optimizer were left as they were, because one of
    the two is not finite or, as `judged` has it, a spike, or there is no target. sums: sums over
    target tokens, by name. means: other values of the step, by name. requests: number of ranks with
    a request (`forge.training.stopping`). factor: by which gradients are still to be multiplied.
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


class Update:
    """The gradients of a step, and what the optimizer makes of them. It waits for the device once,
    with an optimizer that cannot skip an update by itself.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        device: torch.device,
        clip_norm: float,
        clip_value: float = 0.0,
        spikes: Spikes | None = None,
        scaler: torch.amp.GradScaler | None = None,
        ranks: Ranks | None = None,
        max_steps: int = 1,
        reduce_each: bool = False,
        in_backward: bool = False,
    ) -> None:
        """clip_norm: of the whole gradient; clip_value: of each of its values then; 0 = none.
        spikes: judges which steps are skipped. scaler: of losses, in fp16. max_steps: of the run,
        for what modules schedule over it. reduce_each: see `Backward`. in_backward: see
        `InBackward`; without clipping by the norm.
        """
        self.model, self.optimizer, self.device = model, optimizer, device
        self.clip_norm, self.clip_value, self.spikes = clip_norm, clip_value, spikes
        self.ranks = ranks or Ranks()
        self.learning_rate = LearningRate(optimizer, schedule)
        self.scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
        self.backward = Backward(model, objective, self.scaler, device, self.ranks, reduce_each)
        self.modules = StepModules(model, self.ranks, max_steps=max_steps)
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        self.named = [(name, p) for name, p in model.named_parameters() if p in trained]
        self.counted = model.counted if isinstance(model, Pipeline) else lambda _: True
        self.skips_on_device = skips_on_device(optimizer, [p for _, p in self.named])
        self.folds = False
        self.in_backward: InBackward | None = None
        if in_backward:
            self.in_backward = InBackward(
                optimizer,
                self.named,
                counted=self.counted,
                ranks=self.ranks,
                on_device=self.skips_on_device,
                clip_value=clip_value,
            )
            self.backward.before = self.in_backward.begin

    def fold_clipping(self) -> None:
        """Let the update multiply gradients by the factor of clipping, where it can. Then `.grad`
        has gradients that are not clipped.
        """
        plain = not (self.clip_value or self.scaler.is_enabled() or self.in_backward)
        self.folds = plain and takes_factor(self.optimizer, on_device=self.skips_on_device)

    def __call__(self, step: Step, number: int) -> StepOutput:
        """Both, for update `number`, counted from 0."""
        output = self.gradients(step, number)
        self.apply(output, number)
        return output

    def gradients(
        self, step: Step, number: int, *, request: Callable[[], bool] = lambda: False
    ) -> StepOutput:
        """Put the clipped gradient of the whole step in `.grad`. request: asked at the end, whether
        this rank has one for the others.
        """
        lr = self.learning_rate.set(number)
        places = round(step.n_places * self.backward.objective.learnt)
        self.modules.begin(places, self.scaler, self.device)
        if self.in_backward is not None:
            self.in_backward.nothing = not step.n_targets
        loss, sums = self.backward(step)
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)
        several = self.ranks.size > 1
        also = float(several and request())
        factor = None
        if self.in_backward is not None:
            grad_norm, requests = self.in_backward.norm(also=also)
        else:
            grad_norm, requests = norm_of(
                self.named, counted=self.counted, spread=several, also=also
            )
            factor = self._clip(grad_norm)
        grad_norm = grad_norm.to(loss.device)
        judged = self.spikes.judge(loss, grad_norm) if self.spikes and step.n_targets else None
        bad = ~loss.isfinite() | ~grad_norm.isfinite()
        if not step.n_targets:  # momenta and weight decay would move the weights all the same
            bad = torch.ones_like(bad)
        return StepOutput(
            n_tokens=step.n_tokens,
            n_targets=step.n_targets,
            n_places=places,
            lr=lr,
            loss=loss,
            grad_norm=grad_norm,
            skipped=bad if judged is None else bad | judged.spikes.any(),
            judged=judged,
            sums=sums,
            requests=requests,
            factor=factor,
        )

    def _clip(self, norm: Tensor) -> Tensor | None:
        """Clip gradients; or return the factor that the update is to multiply them by."""
        gradients = [p.grad for _, p in self.named if p.grad is not None]
        factor = clip_factor(norm, self.clip_norm) if self.clip_norm > 0 else None
        if factor is not None and self.folds:
            return factor
        if factor is not None:
            scale(gradients, factor)
        if self.clip_value:
            clip_values(gradients, self.clip_value)
        return None

    def _step(self, flags: dict[str, Any]) -> None:
        with told(self.optimizer, flags):
            self.optimizer.step()

    def apply(self, output: StepOutput, number: int) -> None:
        """Update weights, optimizer and modules from the gradient, which is gone then."""
        if self.in_backward is None:
            step_unless(
                self._step, output.skipped, on_device=self.skips_on_device, factor=output.factor
            )
        self.modules.end(output, number)
        if self.scaler.is_enabled():
            # An overflow is the scaler's business, as long as there is a smaller scale to try.
            output.skipped &= self.scaler.scale(torch.ones_like(output.loss)) < 1
            output.skipped |= ~output.loss.isfinite()
            if output.judged is not None:
                output.skipped |= output.judged.spikes.any()
            if not output.n_targets:
                output.skipped.fill_(True)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
