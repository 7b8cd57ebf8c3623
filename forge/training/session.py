"""A run on this rank: all objects built for the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from forge.config.root import Config
from forge.data.preparing.cached import Prepared
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.objectives.objective import Objective
from forge.parallel.ranks import Ranks


class Interrupts(Protocol):
    """Signals for ending a run."""

    def interrupted(self, loop: Any) -> bool:
        """Whether any rank has received a signal; all ranks ask at the same point."""
        ...


@dataclass(frozen=True, kw_only=True)
class Session:
    """Model, data, optimizer and places of a run; frozen, though the model inside is trained.

    config: with all derived values; derived: these values. prepared: the text as tokens. model:
    laid out over the ranks. schedule: factor of the learning rate at each update. scaler: of
    losses, enabled in fp16 alone.
    """

    config: Config
    run_dir: Path
    device: torch.device
    ranks: Ranks
    prepared: Prepared
    derived: list[dict[str, Any]]
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    scaler: torch.amp.GradScaler
    signals: Interrupts

    @property
    def tokenizer(self) -> Tokenizer:
        return self.prepared.tokenizer
