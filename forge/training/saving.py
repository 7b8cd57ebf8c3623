"""The callback that saves: every so many steps, at the end, and what it keeps of every callback."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from forge.training.callback import Callback
from forge.training.checkpoint import Checkpointer
from forge.training.device import Autocast
from forge.training.loop import Loop
from forge.training.step import StepOutput


class Saving(Callback):
    """Saves every `interval` steps and after the last one.

    It stands last among the callbacks: what it keeps of them is from the end of the same step, and whether that step is the last
    one is settled. So the last save comes before all that is done at the end of a run.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        autocast: Autocast,
        interval: int,
        data: dict[str, str],
    ) -> None:
        """data: fingerprints of the tokenizer and of the tokens, so that a run that goes on knows whether they are the same."""
        self.checkpointer, self.model, self.optimizer, self.autocast, self.interval = checkpointer, model, optimizer, autocast, interval
        self.data = data

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.ending or loop.state.step % self.interval == 0:
            self.save(loop)

    def on_end(self, loop: Loop) -> None:
        with loop.paused():
            self.checkpointer.wait()

    def close(self) -> None:
        self.checkpointer.close()

    def save(self, loop: Loop) -> None:
        """Save now."""
        with loop.paused():
            self.checkpointer.save(loop.state.step, model=self.model, optimizer=self.optimizer, meta=self.meta(loop))

    def meta(self, loop: Loop) -> dict[str, Any]:
        """All state but the tensors: plain values."""
        return {
            "train": loop.state.state_dict(),
            "data": self.data,
            "scaler": self.autocast.scaler.state_dict(),
            "callbacks": {type(c).__name__: state for c in loop.callbacks if (state := c.state_dict())},
        }


def restore(meta: dict[str, Any], loop: Loop, autocast: Autocast) -> None:
    """Give loop, loss scaler and callbacks the state that a checkpoint kept."""
    loop.state.load_state_dict(meta["train"])
    if meta["scaler"]:
        autocast.scaler.load_state_dict(meta["scaler"])
    for callback in loop.callbacks:
        state = meta["callbacks"].get(type(callback).__name__)
        if state:
            callback.load_state_dict(state)
