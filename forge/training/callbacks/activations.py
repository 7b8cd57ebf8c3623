"""A callback that writes down the sizes of activations."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

FILE = "activations.json"


class Activations(Callback):
    """Writes the root mean square of activations, and of their change since the first step.

    Of the first micro-batch of every step: embedding, attention, feed-forward layer and residual
    stream of the last block, and logits. Changes are of the same tokens where data.overfit_batches
    is 1.
    """

    def __init__(self, session: Session) -> None:
        self.model: Any = session.model
        self.first: dict[str, Tensor] = {}
        self.rows: list[dict[str, Any]] = []
        self.wants = False
        last = str(len(self.model.blocks) - 1)
        block = self.model.blocks[last]
        places = {
            "embedding": self.model.embedding,
            "attention": block.attention,
            "feed-forward": block.feed_forward,
            "stream": block,
        }
        self.hooks = [
            module.register_forward_hook(self._hook(name))
            for name, module in places.items()
            if module is not None  # a block may be a mixer or a feed-forward layer alone
        ]
        self.hooks.append(self.model.norm.register_forward_hook(self._logits))

    def on_step_start(self, loop: Loop) -> None:
        self.wants = True
        self.rows.append({"step": loop.state.step})

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.rows[-1]["loss"] = float(output.loss)

    def on_end(self, loop: Loop) -> None:
        (loop.run_dir / FILE).write_text(json.dumps(self.rows))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.wants:
                self._record(name, output)

        return record

    def _logits(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Record the logits of the final norm's output; the last activation of a forward pass."""
        if self.wants:
            with torch.no_grad():
                self._record("logits", self.model.logits(output))
            self.wants = False

    def _record(self, name: str, output: Any) -> None:
        values = (output[0] if isinstance(output, tuple) else output).detach().float()
        first = self.first.setdefault(name, values.clone())
        self.rows[-1][name] = _root_mean_square(values)
        self.rows[-1][f"{name} change"] = _root_mean_square(values - first)


def _root_mean_square(values: Tensor) -> float:
    return values.square().mean().sqrt().item()
