"""Optimizers that train other weights than those that are read, as schedule-free ones do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class Modes(Protocol):
    """An optimizer with a train and an eval mode (arXiv:2405.15682).

    Both methods change the weights in place, and `train` gives back those that `eval` has replaced,
    to the bit. What it needs for that is in `state`, by parameter, so that a checkpoint has it.
    """

    def train(self) -> None:
        """Put the weights in place at which gradients are taken; called at the start, and after a
        checkpoint was loaded, which is made in eval mode.
        """
        ...

    def eval(self) -> None:
        """Put those in place that are evaluated, sampled from, saved and exported."""
        ...


@contextmanager
def reading(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the weights of the model are those that are read."""
    if not isinstance(optimizer, Modes):
        yield
        return
    model.train(model.training)  # frees weights that are still gathered
    optimizer.eval()
    try:
        yield
    finally:
        model.train(model.training)
        optimizer.train()
