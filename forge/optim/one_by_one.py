"""Steps of single parameters by any optimizer that treats parameters separately."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forge.optim.combined import CombinedOptimizer, told


def inner_optimizers(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return list(optimizer.optimizers) if isinstance(optimizer, CombinedOptimizer) else [optimizer]


class SequentialUpdates:
    """Takes the steps of parameters one after another, in whatever order."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def owner(self, parameter: Tensor) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
        """The optimizer of a parameter, and the present options of the parameter's group."""
        for optimizer in inner_optimizers(self.optimizer):
            for group in optimizer.param_groups:
                if any(p is parameter for p in group["params"]):
                    return optimizer, group
        raise AssertionError("it is of no group")

    def step(self, parameter: Tensor, flags: dict[str, Any]) -> None:
        """Step a single parameter, equal to its part of a full step. flags: see FLAGS."""
        optimizer, group = self.owner(parameter)
        # The optimizer sees a single group of the one parameter; state is by parameter, and stays.
        groups, optimizer.param_groups = optimizer.param_groups, [{**group, "params": [parameter]}]
        try:
            with told(optimizer, flags):
                optimizer.step()
        finally:
            optimizer.param_groups = groups
