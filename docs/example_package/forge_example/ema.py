"""An exponential moving average of the weights, kept beside them."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput


class EMA(Callback):
    """mean <- decay * mean + (1 - decay) * weights after every update; begins at the first weights,
    ends as ema.safetensors.
    """

    def __init__(self, decay: float = 0.999, log_interval: int = 10) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: must be at least 0 and less than 1")
        self.decay, self.log_interval = decay, log_interval
        self.mean: dict[str, Tensor] = {}

    def on_start(self, loop: Loop) -> None:
        self.mean = {
            name: self.mean.get(name, p).detach().to(p.device, copy=True)
            for name, p in loop.model.named_parameters()
        }

    @torch.no_grad()
    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        for name, parameter in loop.model.named_parameters():
            self.mean[name].lerp_(parameter, 1 - self.decay)
        if loop.state.step % self.log_interval == 0:
            loop.log({"ema/distance": self.distance(loop.model)})

    @torch.no_grad()
    def distance(self, model: torch.nn.Module) -> Tensor:
        """L2 norm of the weights less their mean."""
        return torch.stack(
            [(parameter - self.mean[name]).norm() for name, parameter in model.named_parameters()]
        ).norm()

    def on_end(self, loop: Loop) -> None:
        save_file(
            {name: value.cpu() for name, value in self.mean.items()},
            loop.run_dir / "ema.safetensors",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]
