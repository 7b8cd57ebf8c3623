"""Optimizers with separate weights for training and evaluation, such as schedule-free ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class Modes(Protocol):
    """An optimizer with a train and an eval mode (arXiv:2405.15682).

    Both methods change the weights in place, and `train` restores the weights replaced by `eval`,
    to the bit, from `state`, by parameter, so that a checkpoint can restore them too.
    """

    def train(self) -> None:
        """Put the weights for gradients in place; called at the start, and after loading a
        checkpoint, always saved in eval mode.
        """
        ...

    def eval(self) -> None:
        """Put the weights for evaluation, sampling, saving and export in place."""
        ...


@contextmanager
def reading(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the weights of the model are the weights for evaluation."""
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
