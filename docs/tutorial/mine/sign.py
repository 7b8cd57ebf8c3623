"""An optimizer in plain torch."""

import torch


class Sign(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.01, momentum: float = 0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                weight.add_(state["momentum"].sign(), alpha=-group["lr"])
