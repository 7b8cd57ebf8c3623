"""What the losses of several batches have to know of all of them, found before any is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from forge.data.loader import Batch
from forge.models.modes import evaluating
from forge.objectives.objective import Objective
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks


def look_ahead(
    model: nn.Module, objective: Objective, batches: list[Batch], ranks: Ranks
) -> list[Batch]:
    """The batches as they are learnt from or evaluated; see `Objective.looked_ahead`."""
    if not objective.looks_ahead:
        return batches

    def read(batch: Batch) -> Any:
        return model.read(batch) if isinstance(model, Pipeline) else model

    with torch.no_grad(), evaluating(model):
        return objective.looked_ahead(batches, read, ranks.total)
