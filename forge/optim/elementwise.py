"""Base of elementwise optimizers: the loop over the groups, weight decay, and skipped updates."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from forge.config.optimizers.base import Optimizer as OptimizerSection
from forge.optim.rounding import Rounding
from forge.tensors.local import local
from forge.tensors.masters import master
from forge.tensors.wide import in_16_bits, wide_dtype

foreach: Any = torch  # pyright takes torch's functions on lists of tensors for private


@dataclass(frozen=True, kw_only=True)
class Part:
    """This rank's part of the parameters of a group with gradients.

    found_inf: 1 where the update is to leave every value unchanged, else 0; None = never.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    states: list[dict[str, Tensor]]
    found_inf: Tensor | None

    def state(self, key: str) -> list[Tensor]:
        return [local(state[key]) for state in self.states]

    def unless_skipped(self, values: list[Tensor], kept: list[Tensor]) -> list[Tensor]:
        """Return `values`, or in a skipped update `kept`."""
        if self.found_inf is None:
            return values
        bad = self.found_inf.bool()
        return [torch.where(bad, old, new) for new, old in zip(values, kept, strict=True)]

    def times(self, number: float) -> float | Tensor:
        """Return `number`, or 0 in a skipped update."""
        return number if self.found_inf is None else number * (1 - self.found_inf)

    def count(self) -> Tensor:
        """Count the update in the states' `step`; returns the counts, [parameters], from 1."""
        steps = self.state("step")
        raise_counts(steps, self.times(1.0))
        # Clamped: in a skipped first update the count is 0, and so would be the corrections.
        return torch.stack(steps).to(self.weights[0].dtype).clamp(min=1)


class KeepsFormats(torch.optim.Optimizer):
    """An optimizer with formats of state independent of the formats of the parameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an optimizer with equal groups; every value keeps its format, while
        torch would convert to the parameter's format.
        """
        super().load_state_dict({**state_dict, "state": {}})
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            if saved := state_dict["state"].get(number):
                self.state[parameter] = self.loaded(parameter, saved)

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make the state of a parameter from a saved state."""
        return {key: value.to(parameter.device) for key, value in found.items()}


class Elementwise(KeepsFormats):
    """An elementwise update rule, applied to each shard of a parameter alone.

    As in torch's fused optimizers, every value stays unchanged where the attribute `found_inf` is a
    tensor of 1. Gradients are multiplied by the attribute `factor`, if present. Weight decay is
    decoupled (arXiv:1711.05101): w <- w - lr * weight_decay * w, in `cautious` groups only for
    weights also moved towards 0 by the update. For weights in 16 bits the update is computed in
    fp32, by default also the format of the state.

    options: names of the section's options present as keys in a group of parameters, besides `lr`
    and `weight_decay`. rounding: of updated weights to 16 bits; None = to the nearest.
    """

    _step_supports_amp_scaling = True
    takes_factor = True
    options: ClassVar[tuple[str, ...]] = ()
    rounding: Rounding | None = None

    def __init__(self, params: Iterable[Any], section: OptimizerSection) -> None:
        names = ("lr", "weight_decay", *self.options)
        super().__init__(params, {"cautious": False} | {n: getattr(section, n) for n in names})
        self.section = section

    @abstractmethod
    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter before its first update."""

    def begin(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Prepare the update of the parameters, all of a group, each with a state."""

    @abstractmethod
    def take(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update parameters with a gradient and a state, in place."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter].update(self.initial(group, parameter))
            self.begin(group, parameters)
            # All at once on a GPU, for fewer kernel launches. One by one on a CPU, for the cache,
            # and for gradients in 16 bits, so that only one copy in fp32 exists at a time.
            at_once = parameters and parameters[0].is_cuda and not in_16_bits(parameters[0].grad)
            for some in [parameters] if at_once else [[parameter] for parameter in parameters]:
                self.take(group, some)
        return loss


class ByParts(Elementwise):
    """An update rule for lists of weights, gradients and states."""

    @abstractmethod
    def update(self, group: dict[str, Any], part: Part) -> None:
        """Update weights and states, in place."""

    def take(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        number, factor = group.get("number", 0), getattr(self, "factor", None)
        gradients = [local(p.grad).to(wide_dtype(p)) for p in parameters]  # type: ignore[arg-type]
        if factor is not None:
            gradients = foreach._foreach_mul(gradients, factor)
        part = Part(
            weights=[local(master(p)).to(wide_dtype(p)) for p in parameters],
            gradients=gradients,
            states=[self.state[p] for p in parameters],
            found_inf=getattr(self, "found_inf", None),
        )
        self.update(group, part)
        for parameter, weight in zip(parameters, part.weights, strict=True):
            if in_16_bits(parameter):
                write_rounded(self.rounding, parameter, weight, number)


def zeros_of(parameter: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Make zeros laid out as a parameter. dtype: None = the format of the update."""
    return torch.zeros_like(parameter, dtype=dtype or wide_dtype(parameter), requires_grad=False)


def write_rounded(
    rounding: Rounding | None, parameter: Tensor, values: Tensor, number: int
) -> None:
    """Give a parameter in 16 bits its weights after update `number`."""
    if rounding is None:
        local(parameter).copy_(values)
    else:
        rounding.write(parameter, values, number)


def count_of(parameter: Tensor) -> Tensor:
    """Make the count of updates of a parameter, 0, on the parameter's device, so that no update
    waits for a copy.
    """
    return torch.zeros((), dtype=torch.float32, device=parameter.device)


def raise_counts(counts: list[Tensor], by: float | Tensor) -> None:
    """Add a number to all counts, in place, in one kernel on a GPU."""
    # As a list: torch reads a single tensor on the host, and waits for the GPU (2.11 to 2.13).
    foreach._foreach_add_(counts, [by] * len(counts) if isinstance(by, Tensor) else by)


def correction(counts: Tensor, beta: float) -> Tensor:
    """1 - beta**count: the relative size of a moment begun with 0."""
    # expm1 keeps the digits of 1 - beta**count for beta close to 1.
    return -torch.expm1(counts * (math.log(beta) if beta else -math.inf))


def descend(group: dict[str, Any], part: Part, updates: list[Tensor]) -> None:
    """w <- w - lr * (update + weight_decay * w); `updates` are overwritten."""
    rate, decay = part.times(group["lr"]), group["weight_decay"]
    if decay and group["cautious"]:
        pairs = zip(part.weights, updates, strict=True)
        towards_0 = [torch.where(w * u >= 0, w, 0.0) for w, u in pairs]
        foreach._foreach_add_(updates, towards_0, alpha=decay)
    elif decay:
        foreach._foreach_mul_(part.weights, 1 - rate * decay)
    foreach._foreach_mul_(updates, rate)
    foreach._foreach_sub_(part.weights, updates)
