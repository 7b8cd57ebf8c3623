"""Forward and backward of the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from forge.data.loader import Batch, Step
from forge.models.contract import DRAWN
from forge.objectives.objective import Objective
from forge.parallel.fsdp import reduce_in_backward
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.training.ahead import look_ahead


class Backward:
    """Adds up the gradients of a step, each micro-batch counted by its target tokens.

    The loss is the sum over the step's targets divided by their number, however they are spread
    over micro-batches and ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        scaler: torch.amp.GradScaler,
        device: torch.device,
        ranks: Ranks,
        reduce_each: bool,
    ) -> None:
        """reduce_each: whether each micro-batch's gradient is reduced by itself. `before` is called
        with the loss of each.
        """
        self.model, self.objective, self.scaler = model, objective, scaler
        self.device, self.ranks, self.reduce_each = device, ranks, reduce_each
        self.before: Callable[[Tensor], None] = lambda loss: None

    def __call__(self, step: Step) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and the sums that the objective reports, over all ranks."""
        weight = 1.0 / max(step.n_targets, 1)
        along = (*self.objective.along_sequence, *DRAWN)
        batches = [self.ranks.own_batch(batch, along, self.device) for batch in step.batches]
        batches = look_ahead(self.model, self.objective, batches, self.ranks)
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
            losses = self.objective(self.model, batch)  # type: ignore[arg-type]
            reduce_in_backward(self.model, last=batch is batches[-1], each=self.reduce_each)
            loss = losses.total * weight
            self.before(loss)
            (scaler.scale(loss) if scaler.is_enabled() else loss).backward()
            total = total + loss.detach()
            for name, value in losses.sums.items():
                sums[name] = sums[name] + value if name in sums else value
        return total, sums
