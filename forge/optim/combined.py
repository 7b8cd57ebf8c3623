"""Several optimizers, with separate parameters, joined into a single optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from forge.optim.train_eval_modes import Modes


class CombinedOptimizer(torch.optim.Optimizer):
    """An optimizer of several `optimizers`, updating in order. Groups and state are the objects of
    the members.

    The modes of members with modes (`forge.optim.train_eval_modes`) are switched together. Like
    fused optimizers leaves every value unchanged where the attribute `found_inf` is a tensor of 1,
    if all members can.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups  # in place of torch's new dicts
        self._share()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in self.optimizers
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        flags = {name: getattr(self, name) for name in FLAGS if hasattr(self, name)}
        for optimizer in self.optimizers:
            with told(optimizer, flags):
                optimizer.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let each optimizer read its own part, possibly in formats of its own."""
        groups, state, start = state_dict["param_groups"], state_dict["state"], 0
        for optimizer in self.optimizers:
            own_groups = groups[start : start + len(optimizer.param_groups)]
            numbers = {number for group in own_groups for number in group["params"]}
            own_state = {number: value for number, value in state.items() if number in numbers}
            optimizer.load_state_dict({"param_groups": own_groups, "state": own_state})
            start += len(own_groups)
        self.param_groups = [
            group for optimizer in self.optimizers for group in optimizer.param_groups
        ]
        loaded = {p: value for optimizer in self.optimizers for p, value in optimizer.state.items()}
        self.state = defaultdict(dict, loaded)
        self._share()

    def train(self) -> None:
        """Put the weights for gradients in place."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Modes):
                optimizer.train()

    def eval(self) -> None:
        """Put the weights for evaluation, saving and export in place."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Modes):
                optimizer.eval()

    def _share(self) -> None:
        """Give each optimizer its part of the groups, and all optimizers the shared state."""
        start = 0
        for optimizer in self.optimizers:
            end = start + len(optimizer.param_groups)
            optimizer.param_groups, optimizer.state = self.param_groups[start:end], self.state
            start = end


FLAGS = ("grad_scale", "found_inf", "factor")
"""Attributes set on an optimizer for an update."""


@contextmanager
def told(optimizer: torch.optim.Optimizer, flags: dict[str, Any]) -> Iterator[None]:
    """Inside, an optimizer has the attributes `flags`."""
    for name, value in flags.items():
        setattr(optimizer, name, value)
    try:
        yield
    finally:
        for name in flags:
            delattr(optimizer, name)
