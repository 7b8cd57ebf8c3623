"""Several optimizers, each of its own parameters, as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from forge.optim.train_eval_modes import Modes


class Together(torch.optim.Optimizer):
    """Updates by all of `optimizers`, in their order. Its groups and its state are theirs: the
    same objects.

    Its modes are those of each that has them (`forge.optim.train_eval_modes`). As a fused one it
    leaves every value as it is where the attribute `found_inf` is a tensor of 1, if all can.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups
        self._share()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in self.optimizers
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
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
        """Each reads its own part, which it may keep in formats of its own."""
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
        """Weights at which gradients are taken."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Modes):
                optimizer.train()

    def eval(self) -> None:
        """Weights that are evaluated, saved and exported."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, Modes):
                optimizer.eval()

    def _share(self) -> None:
        """Give each its part of the groups, and all the one state."""
        start = 0
        for optimizer in self.optimizers:
            end = start + len(optimizer.param_groups)
            optimizer.param_groups, optimizer.state = self.param_groups[start:end], self.state
            start = end


FLAGS = ("grad_scale", "found_inf", "factor")
"""What an optimizer is told of the update that it makes."""


@contextmanager
def told(optimizer: torch.optim.Optimizer, flags: dict[str, Any]) -> Iterator[None]:
    """Inside, an optimizer has these attributes."""
    for name, value in flags.items():
        setattr(optimizer, name, value)
    try:
        yield
    finally:
        for name in flags:
            delattr(optimizer, name)
