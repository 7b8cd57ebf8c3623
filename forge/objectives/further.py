"""Targets further ahead than the next token, for multi-token prediction."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch


def targets_ahead(batch: Batch, depth: int) -> tuple[Tensor, Tensor | None]:
    """The targets of the module of a depth, from 1, and their weights, [batch, seq]: `depth` tokens
    after those of the next token.

    A target counts where it counts for the token before it, and where all tokens between are of one
    document.
    """
    targets = ahead(batch["targets"], depth, IGNORE_INDEX)
    if "documents" in batch:
        documents = batch["documents"]
        targets = targets.where(ahead(documents, depth, -1) == documents, IGNORE_INDEX)
    weights = batch.get("weights")
    return targets, None if weights is None else ahead(weights, depth, 0)


def ahead(values: Tensor, depth: int, end: int) -> Tensor:
    """Values `depth` places further, [batch, seq]; `end` after the row."""
    return F.pad(values[:, depth:], (0, min(depth, values.shape[1])), value=end)
