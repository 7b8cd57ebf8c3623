"""One step: the gradients of micro-batches, clipping, and the optimizer's update.

The update is skipped for a non-finite loss or gradient, for a spike, and without a target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forge.data.batches.loader import Batch, Step
from forge.models.contract import DRAWN
from forge.models.reading_mode import evaluating
from forge.objectives.objective import LookedAhead, Objective
from forge.optim.combined import told
from forge.optim.schedules import LearningRate
from forge.parallel.gradient_sums import GradientSums
from forge.parallel.gradients import (
    clip_factor,
    clip_values,
    norm_of,
    reduce_in_backward,
    scale_gradients,
)
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.training.callbacks.spikes import Spikes
from forge.training.optimizer_step import InBackward, skips_on_device, step_unless, takes_factor
from forge.training.step_output import StepOutput


def look_ahead(
    model: nn.Module, objective: Objective, batches: list[Batch], ranks: Ranks
) -> LookedAhead:
    """Prepare batches for learning or evaluation; see `Objective.looked_ahead`."""
    if not objective.looks_ahead:
        return LookedAhead(batches)

    def read(batch: Batch) -> Any:
        return model.read(batch) if isinstance(model, Pipeline) else model

    with torch.no_grad(), evaluating(model):
        return objective.looked_ahead(batches, read, ranks.total)


class Backward:
    """Adds up the gradients of a step, each micro-batch weighted by its target tokens.

    The loss is the sum over the step's targets divided by the number of targets, for any division
    into micro-batches and ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        scaler: torch.amp.GradScaler,
        device: torch.device,
        ranks: Ranks,
        reduce_each: bool,
        before: Callable[[Tensor, int], None] | None = None,
        gradient_sums: GradientSums | None = None,
    ) -> None:
        """reduce_each: whether each micro-batch's gradient is reduced separately. before: called
        with the loss of each micro-batch, before the gradient, and the number of targets of the
        step. gradient_sums: of micro-batches in fp32, where FSDP does not add them up.
        """
        self.model, self.objective, self.scaler = model, objective, scaler
        self.gradient_sums = gradient_sums
        self.device, self.ranks, self.reduce_each = device, ranks, reduce_each
        self.before = before

    def __call__(self, step: Step) -> tuple[Tensor, dict[str, Tensor], int]:
        """The loss and the sums reported by the objective, over all ranks; and the targets."""
        along = (*self.objective.along_sequence, *DRAWN)
        batches = [self.ranks.own_batch(batch, along, self.device) for batch in step.batches]
        batches, changed = look_ahead(self.model, self.objective, batches, self.ranks)
        n_targets = step.n_targets if changed is None else changed
        if isinstance(self.model, Pipeline):
            loss, sums = self.model.step(batches, self.objective, 1.0 / max(n_targets, 1))
        else:
            loss, sums = self._one_after_another(batches, n_targets)
        if self.ranks.size > 1:
            # One collective for the loss and all sums.
            values = [loss, *(value.to(loss.dtype) for value in sums.values())]
            totals = self.ranks.total(torch.stack(values))
            loss, sums = totals[0], dict(zip(sums, totals[1:], strict=True))
            if (replicas := self.ranks.replicas[1]) > 1:
                loss = loss / replicas
        return loss, sums, n_targets

    def _one_after_another(
        self, batches: Sequence[Batch], n_targets: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sums: dict[str, Tensor] = {}
        total, scaler = torch.zeros((), device=self.device), self.scaler
        # A replica with weights of its own averages over its share of the targets.
        weight = self.ranks.replicas[1] / max(n_targets, 1)
        for batch in batches:
            losses = self.objective(self.model, batch)  # type: ignore[arg-type]
            reduce_in_backward(self.model, last=batch is batches[-1], each=self.reduce_each)
            loss = losses.total * weight
            if self.before is not None:
                self.before(loss, n_targets)
            if self.gradient_sums is not None:
                self.gradient_sums.is_last = batch is batches[-1]
            (scaler.scale(loss) if scaler.is_enabled() else loss).backward()
            total = total + loss.detach()
            for name, value in losses.sums.items():
                sums[name] = sums[name] + value if name in sums else value
        if self.gradient_sums is not None:
            self.gradient_sums.finish()
        return total, sums


class StepModules:
    """Tells modules with `end_of_step` of the begin and end of a step, and collects values.

    See `forge.models.contract.InStep`. A pipeline speaks for its stages.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, *, max_steps: int) -> None:
        stages = set(model.parts) if isinstance(model, Pipeline) else set()
        self.modules: list[Any] = [
            module
            for module in model.modules()
            if hasattr(module, "end_of_step") and module not in stages
        ]
        self.ranks, self.max_steps = ranks, max_steps

    def begin(self, positions: int, scaler: torch.amp.GradScaler, device: torch.device) -> None:
        """positions: trained positions in all rows of all ranks."""
        scale: float | torch.Tensor = 1.0 / max(positions, 1)
        if self.modules and scaler.is_enabled():
            scale = scaler.scale(torch.full((), scale, device=device))
        for module in self.modules:
            module.begin_step(scale)

    def end(self, output: StepOutput, number: int) -> None:
        """Finish update `number`, from 0."""
        done, skipped, total = number / self.max_steps, output.skipped, self.ranks.total
        for module in self.modules:
            sums, means = module.end_of_step(done, skipped=skipped, total=total)
            if output.n_targets != output.n_places:  # sums over positions, later divided by targets
                share = output.n_targets / output.n_places
                sums = {name: value * share for name, value in sums.items()}
            output.sums |= sums
            output.means |= means


class Update:
    """The gradients of a step, and the optimizer's update.

    Waits for the device once per step with an optimizer unable to skip an update on the device.
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
        """clip_norm: of the whole gradient; clip_value: of each value afterwards; 0 = none. spikes:
        judges the steps to skip. scaler: of losses, in fp16. max_steps: of the run, for schedules
        inside modules. reduce_each: see `Backward`. in_backward: see `InBackward`; without clipping
        by the norm.
        """
        self.model, self.optimizer, self.device = model, optimizer, device
        self.clip_norm, self.clip_value, self.spikes = clip_norm, clip_value, spikes
        self.ranks = ranks or Ranks()
        self.learning_rate = LearningRate(optimizer, schedule)
        self.scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
        self.modules = StepModules(model, self.ranks, max_steps=max_steps)
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        self.named = [(name, p) for name, p in model.named_parameters() if p in trained]
        self.counted = model.counted if isinstance(model, Pipeline) else lambda _: True
        self.skips_on_device = skips_on_device(optimizer, [p for _, p in self.named])
        self.takes_factor = takes_factor(optimizer, on_device=self.skips_on_device)
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
        begin_in_backward = self.in_backward.begin if self.in_backward is not None else None
        sums = self.ranks.mesh is None and not reduce_each and self.in_backward is None
        added = [p for _, p in self.named] if sums else []
        self.backward = Backward(
            model,
            objective,
            self.scaler,
            device,
            self.ranks,
            reduce_each,
            begin_in_backward,
            GradientSums.of(added),
        )

    def __call__(self, step: Step, number: int) -> StepOutput:
        """Compute gradients and apply update `number`, counted from 0."""
        output = self.gradients(step, number)
        self.apply(output, number)
        return output

    def gradients(
        self,
        step: Step,
        number: int,
        *,
        request: Callable[[], bool] = lambda: False,
        read: bool = True,
    ) -> StepOutput:
        """Put the gradient of the whole step in `.grad`.

        request: asked at the end, whether this rank has a request to the others. read: whether
        `.grad` is read before `apply`; if not, a capable optimizer multiplies by the factor of
        clipping in place of a separate pass.
        """
        lr = self.learning_rate.set(number)
        self.backward.objective.progress = number / self.modules.max_steps
        positions = round(step.n_places * self.backward.objective.learnt)
        self.modules.begin(positions, self.scaler, self.device)
        loss, sums, n_targets = self.backward(step)
        if self.scaler.is_enabled():
            # Before the norm: clipping is of the true gradient.
            self.scaler.unscale_(self.optimizer)
        several = self.ranks.size > 1
        # The request of a callback is summed with the norm, without a separate message.
        also = float(several and request())
        factor = None
        if self.in_backward is not None:
            grad_norm, requests = self.in_backward.norm(also=also)
        else:
            grad_norm, requests = norm_of(
                self.named,
                counted=self.counted,
                spread=several,
                also=also,
                replicas=self.ranks.replicas,
            )
            factor = self._clip(grad_norm, read=read)
        grad_norm = grad_norm.to(loss.device)
        judged = self.spikes.judge(loss, grad_norm) if self.spikes and n_targets else None
        # x - x is 0 for a finite x, else NaN: 3 kernels, where isfinite of both takes 11.
        bad = (loss - loss) != (grad_norm - grad_norm)
        if not n_targets:  # momenta and weight decay would move the weights without a loss
            bad = torch.ones_like(bad)
        return StepOutput(
            n_tokens=step.n_tokens,
            n_targets=n_targets,
            n_places=positions,
            lr=lr,
            loss=loss,
            grad_norm=grad_norm,
            skipped=bad if judged is None else bad | judged.spikes.any(),
            judged=judged,
            sums=sums,
            means={name: loss.new_tensor(value) for name, value in step.means.items()},
            requests=requests,
            factor=factor,
        )

    def _clip(self, norm: Tensor, *, read: bool) -> Tensor | None:
        """Clip gradients; or return the factor for the update to multiply by."""
        gradients = [p.grad for _, p in self.named if p.grad is not None]
        factor = clip_factor(norm, self.clip_norm) if self.clip_norm > 0 else None
        folds = self.takes_factor and not (read or self.clip_value or self.scaler.is_enabled())
        if factor is not None and folds:
            return factor
        if factor is not None:
            scale_gradients(gradients, factor)
        if self.clip_value:
            clip_values(gradients, self.clip_value)
        return None

    def _step(self, flags: dict[str, Any]) -> None:
        with told(self.optimizer, flags):
            self.optimizer.step()

    def apply(self, output: StepOutput, number: int) -> None:
        """Update weights, optimizer and modules from the gradient, and free the gradient."""
        if self.in_backward is None:
            step_unless(
                self._step, output.skipped, on_device=self.skips_on_device, factor=output.factor
            )
        self.modules.end(output, number)
        if self.scaler.is_enabled():
            # The scaler answers an overflow itself, as long as a smaller scale is left to try.
            output.skipped &= self.scaler.scale(torch.ones_like(output.loss)) < 1
            output.skipped |= ~output.loss.isfinite()
            if output.judged is not None:
                output.skipped |= output.judged.spikes.any()
            if not output.n_targets:
                output.skipped.fill_(True)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
