"""A moving mean of the weights beside training, for evaluation, samples and export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forge.config.eval import EMA
from forge.optim.elementwise import zeros_of
from forge.tensors.local import local
from forge.tensors.masters import master
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

foreach: Any = torch  # pyright takes torch's functions on lists of tensors for private


class WeightAverage(Callback):
    """Exponential moving average of the trained weights, in fp32 or wider (train.ema_decay).

    mean <- decay * mean + (1 - decay) * weights, every `train.ema_interval` updates from update
    `train.ema_start_step` on; the first mean is the weights. With `train.ema_warmup` the decay of
    the n-th move is at most (1 + n) / (10 + n).

    The mean of a parameter is cut over ranks as the parameter is, so no move needs a collective;
    checkpoints store it by the parameter's name. Stands before all callbacks that evaluate.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        config = session.config
        self.section, self.evaluates = config.train, config.eval.weights == EMA
        named = session.model.named_parameters()
        self.parameters = {name: p for name, p in named if p.requires_grad}
        self.mean: dict[str, Tensor] = {}
        self.moves = 0

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.train.ema_decay > 0

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        step = loop.state.step
        if step >= self.section.ema_start_step and step % self.section.ema_interval == 0:
            self.move()

    @torch.no_grad()
    def move(self) -> None:
        """Move the mean towards the present weights."""
        weights = {name: master(parameter) for name, parameter in self.parameters.items()}
        if not self.mean:
            self.mean = {name: zeros_of(p) for name, p in self.parameters.items()}
            for name, mean in self.mean.items():
                local(mean).copy_(local(weights[name]))
            return
        self.moves += 1
        decay = self.section.ema_decay
        if self.section.ema_warmup:
            decay = min(decay, (1 + self.moves) / (10 + self.moves))
        means = [local(mean) for mean in self.mean.values()]
        values = [local(weights[name]).to(mean.dtype) for name, mean in self.mean.items()]
        foreach._foreach_lerp_(means, values, 1 - decay)

    @contextmanager
    def evaluated_weights(self, loop: Loop) -> Iterator[None]:
        """Inside, the model has the mean for weights; after, the trained ones, to the bit."""
        if not self.mean or not self.evaluates:
            yield
            return
        loop.model.train(loop.model.training)  # frees weights that are still gathered
        trained = {name: local(p).detach().clone() for name, p in self.parameters.items()}
        self._put(self.mean)
        try:
            yield
        finally:
            loop.model.train(loop.model.training)
            self._put(trained)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        """Write values into the weights that the model computes with; masters stay."""
        for name, parameter in self.parameters.items():
            local(parameter).copy_(local(values[name]))

    def state_dict(self) -> dict[str, Any]:
        return {"moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moves = state["moves"]

    def parameter_state(self) -> dict[str, Tensor]:
        return self.mean

    @torch.no_grad()
    def load_parameter_state(self, state: dict[str, Tensor]) -> None:
        if self.parameters.keys() - state.keys():  # the model has grown: a new mean begins
            self.mean, self.moves = {}, 0
            return
        for name, parameter in self.parameters.items():
            self.mean[name] = zeros_of(parameter)
            local(self.mean[name]).copy_(local(state[name]))
