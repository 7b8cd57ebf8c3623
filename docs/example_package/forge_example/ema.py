"""An exponential moving average of the weights, kept beside them."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.api import Callback, Loop, Session, StepOutput, copy_local


class EMA(Callback):
    """mean <- decay * mean + (1 - decay) * weights after every update; ends as ema.safetensors."""

    def __init__(
        self, decay: float = 0.999, log_interval: int = 10, session: Session | None = None
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: must be at least 0 and less than 1")
        self.decay, self.log_interval = decay, log_interval
        self.is_main = session is None or session.ranks.main
        self.mean: dict[str, Tensor] = {}
        self.loaded: dict[str, Tensor] = {}

    def on_start(self, loop: Loop) -> None:
        for name, parameter in loop.model.named_parameters():
            self.mean[name] = parameter.detach().clone()
            if name in self.loaded:  # whole, of which this rank keeps what it has of the weight
                copy_local(self.mean[name], self.loaded[name])

    @torch.no_grad()
    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        for name, parameter in loop.model.named_parameters():
            self.mean[name].lerp_(parameter, 1 - self.decay)
        if loop.state.step % self.log_interval == 0:
            pairs = ((weight, self.mean[name]) for name, weight in loop.model.named_parameters())
            norms = [torch.linalg.vector_norm(weight - mean) for weight, mean in pairs]
            loop.log({"ema/distance": torch.stack(norms).norm()})

    def on_end(self, loop: Loop) -> None:
        whole = {name: value.cpu() for name, value in gathered(self.mean).items()}
        if self.is_main:
            save_file(whole, loop.run_dir / "ema.safetensors")

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["mean"]


def gathered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors, of whose parts all ranks have some."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in tensors.items()
    }
