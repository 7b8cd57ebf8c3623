"""Schedule-free SGD (arXiv:2405.15682): gradients at y, a mean x that is read, steps of z."""

from __future__ import annotations

from typing import Any

import torch

from forge_example.conf import ScheduleFree as Section


class ScheduleFree(torch.optim.Optimizer):
    def __init__(self, section: Section, params: list[dict[str, Any]]) -> None:
        super().__init__(params, {})
        self.to_x, self.to_y = 1 - 1 / section.beta, 1 - section.beta  # on the line from y to z

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for y in [weight for weight in group["params"] if weight.grad is not None]:
                if not self.state[y]:
                    self.state[y] = {"z": y.clone(), "step": torch.ones(())}
                z, step = self.state[y]["z"], self.state[y]["step"]
                x = y.lerp(z, self.to_x)
                z -= group["lr"] * (y.grad + group["weight_decay"] * y)
                step += 1
                y.copy_(x.lerp_(z, 1 / step.item()).lerp(z, self.to_y))

    @torch.no_grad()
    def eval(self) -> None:
        for weight, state in self.state.items():
            state["y"] = weight.clone()
            weight.lerp_(state["z"], self.to_x)

    @torch.no_grad()
    def train(self) -> None:
        for weight, state in self.state.items():
            weight.copy_(state.pop("y", weight))
