"""Signum, the sign of a momentum (arXiv:1802.04434, algorithm 2)."""

from __future__ import annotations

from typing import Any

import torch

from forge_example.conf import Signum as Section


class Signum(torch.optim.Optimizer):
    def __init__(self, section: Section, params: list[dict[str, Any]]) -> None:
        super().__init__(params, {"beta": section.beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if "momentum" not in self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
                momentum = self.state[weight]["momentum"]
                momentum.lerp_(weight.grad, 1 - group["beta"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * momentum.sign())
