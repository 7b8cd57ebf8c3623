"""The modules of a model that take part in each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks

if TYPE_CHECKING:
    from forge.training.step import StepOutput


class StepModules:
    """Tells those with `end_of_step` when a step begins and ends, and adds what they report to that
    of the step; see `forge.models.contract.InStep`. A pipeline speaks for its stages.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, *, max_steps: int) -> None:
        stages = set(model.parts) if isinstance(model, Pipeline) else set()
        self.modules: list[Any] = [
            module
            for module in model.modules()
            if hasattr(module, "end_of_step") and module not in stages
        ]
        self.ranks, self.max_steps = ranks, max_steps

    def begin(self, places: int, scaler: torch.amp.GradScaler, device: torch.device) -> None:
        """places: of all rows of all ranks that are learnt from."""
        scale: float | torch.Tensor = 1.0 / max(places, 1)
        if self.modules and scaler.is_enabled():
            scale = scaler.scale(torch.full((), scale, device=device))
        for module in self.modules:
            module.begin_step(scale)

    def end(self, output: StepOutput, number: int) -> None:
        """After update `number`, from 0."""
        done, skipped, total = number / self.max_steps, output.skipped, self.ranks.total
        for module in self.modules:
            sums, means = module.end_of_step(done, skipped=skipped, total=total)
            if output.n_targets != output.n_places:  # these are of places, and divided by targets
                share = output.n_targets / output.n_places
                sums = {name: value * share for name, value in sums.items()}
            output.sums |= sums
            output.means |= means
