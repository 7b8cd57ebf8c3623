"""Statistics of activations, gradients and weights by layer; the first layer with a NaN."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from forge.parallel.gradients import squares
from forge.parallel.pipeline import Pipeline
from forge.tensors.local import local
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)
Sums = dict[str, dict[str, float]]
"""Of each layer: sums of squares, counts and maxima, by name."""


class Internals(Callback):
    """Logs internals/{activations,output_gradients,gradients,weights}/LAYER every
    `metrics.internals` steps.

    A layer is a block, or another module of the model's first level. The value is the root mean
    square over all ranks and micro-batches of the step. Activations are the outputs of layers, with
    the largest absolute value in internals/largest; gradients are clipped, those of outputs not. In
    a step with a value that is not finite the first layer with such an output is named; if there is
    none, the last one with such a gradient of its output, since gradients come from behind.

    Waits for the device in every step.
    """

    def __init__(self, session: Session) -> None:
        self.interval, self.ranks = session.config.metrics.internals, session.ranks
        layers = dict(watched_layers(session.model))
        self.outputs: dict[str, list[Tensor]] = {}
        self.backward: dict[str, list[Tensor]] = {}
        self.sums: Sums = {}
        self.hooks = [m.register_forward_hook(self._hook(n)) for n, m in layers.items()]

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.metrics.internals > 0

    def on_step_start(self, loop: Loop) -> None:
        self.outputs, self.backward, self.sums = {}, {}, {}

    @torch.no_grad()
    def on_gradients(self, loop: Loop) -> None:
        self._take_parameters(loop, "gradients", lambda p: p.grad)

    @torch.no_grad()
    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        is_bad = bool(output.skipped) and output.n_targets > 0
        if not is_bad and loop.state.step % self.interval:
            return
        self._take_parameters(loop, "weights", lambda p: p.detach())
        for kind, of_layers in (("activations", self.outputs), ("output_gradients", self.backward)):
            for name, moments in of_layers.items():
                total, largest, count = torch.stack(moments).unbind(1)
                self._put(kind, name, float(total.sum()), float(count.sum()))
                if kind == "activations":
                    self.sums[name]["largest"] = float(largest.max())
        merged = add_up_ranks(self.ranks.of_all(self.sums))
        if is_bad:
            if self.ranks.main and (sentence := first_fault(merged)):
                log.warning("step %d: %s", loop.state.step, sentence)
        elif loop.state.step % self.interval == 0:
            loop.log(logged_statistics(merged))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            values = _first_tensor(output)
            if values is None or not module.training:
                return
            self.outputs.setdefault(name, []).append(_moments(values))
            if values.requires_grad:
                values.register_hook(
                    lambda gradient: self.backward.setdefault(name, []).append(_moments(gradient))
                )

        return record

    def _take_parameters(
        self, loop: Loop, kind: str, values: Callable[[Tensor], Tensor | None]
    ) -> None:
        """Sum the squares of what the parameters of each layer have on this rank."""
        by_layer: dict[str, list[tuple[str, Tensor]]] = {}
        for name, parameter in loop.update.named:
            value = values(parameter)
            if value is not None:
                by_layer.setdefault(layer_of(name), []).append((name, value))
        counted, spread = loop.update.counted, self.ranks.size > 1
        device = loop.session.device
        for layer, named in by_layer.items():
            total = squares(named, counted=counted, spread=spread, device=device)
            self._put(kind, layer, float(total), 0.0)
            # The same on all ranks of a layer: the size of whole tensors.
            self.sums[layer][f"{kind} size"] = float(sum(value.numel() for _, value in named))

    def _put(self, kind: str, layer: str, total: float, count: float) -> None:
        entry = self.sums.setdefault(layer, {})
        entry[kind], entry[f"{kind} count"] = total, count


def watched_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The blocks of a model and its other modules of the first level, by name."""
    stages: Iterable[Any] = model.parts if isinstance(model, Pipeline) else [model]
    for stage in stages:
        for name, child in stage.named_children():
            if name == "blocks":
                yield from ((f"blocks.{number}", block) for number, block in child.named_children())
            else:
                yield name, child


def layer_of(parameter: str) -> str:
    """The layer of a parameter by its name."""
    words = parameter.split(".")
    return ".".join(words[: 2 if words[0] == "blocks" else 1])


def add_up_ranks(of_ranks: Iterable[Sums]) -> Sums:
    """Sums over ranks, the layers in the order of the forward pass."""
    merged: Sums = {}
    order: dict[str, tuple[int, int]] = {}
    for sums in of_ranks:
        for layer, entry in sums.items():
            block = int(layer.partition(".")[2]) if layer.startswith("blocks.") else -1
            order[layer] = (0 if layer == "embedding" else 1 if block >= 0 else 2, block)
            total = merged.setdefault(layer, {})
            for key, value in entry.items():
                is_maximum = key == "largest" or key.endswith(" size")
                # max() of Python loses a NaN.
                worst = value if math.isnan(value) else max(total.get(key, value), value)
                total[key] = worst if is_maximum else total.get(key, 0.0) + value
    return {layer: merged[layer] for layer in sorted(merged, key=order.__getitem__)}


def logged_statistics(sums: Sums) -> dict[str, float]:
    """The values to log: root mean squares, and the largest output."""
    values: dict[str, float] = {}
    for layer, entry in sums.items():
        for kind in ("activations", "output_gradients", "gradients", "weights"):
            count = entry.get(f"{kind} size") or entry.get(f"{kind} count")
            if kind in entry and count:
                values[f"internals/{kind}/{layer}"] = math.sqrt(entry[kind] / count)
        if "largest" in entry:
            values[f"internals/largest/{layer}"] = entry["largest"]
    return values


def first_fault(sums: Sums) -> str:
    """A sentence naming the layer where values stop being finite; empty if all are finite."""
    outputs = [n for n, entry in sums.items() if not math.isfinite(entry.get("activations", 0.0))]
    if outputs:
        return f"the first layer whose output is not finite is {outputs[0]}"
    key = "output_gradients"
    gradients = [n for n, entry in sums.items() if not math.isfinite(entry.get(key, 0.0))]
    if gradients:
        return (
            "all outputs of layers are finite; on the way back the gradient of the output of "
            f"{gradients[-1]} is the first that is not"
        )
    return ""


@torch.no_grad()
def _moments(values: Tensor) -> Tensor:
    """Sum of squares, largest absolute value and count of this rank's part: [3]."""
    part = local(values).detach()
    part = part if part.dtype == torch.float64 else part.float()
    largest = part.abs().max() if part.numel() else part.new_zeros(())
    return torch.stack([part.square().sum(), largest, part.new_tensor(part.numel())])


def _first_tensor(output: Any) -> Tensor | None:
    """The tensor of floats in a layer's output."""
    values = output[0] if isinstance(output, tuple | list) and output else output
    return values if isinstance(values, Tensor) and values.is_floating_point() else None
