"""All mixtures of experts of a model over a step: the scale of their auxiliary losses, their load, and the bias that evens it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from forge.config.moe import MoE as MoEConfig
from forge.models.moe import MoE
from forge.models.routing_record import SUMS


class RoutingReport(NamedTuple):
    """One step, over all its tokens, as means over the model's layers with experts; scalars, still on the device.

    sums: auxiliary losses, without their coefficients, as sums over tokens. means: load_max and load_min, the busiest and the idlest
    expert's load over the even one; entropy of a token's shares, in nats; dropped, of the assignments; bias, from lowest to highest.
    """

    sums: dict[str, Tensor]
    means: dict[str, Tensor]


class Balance:
    """Tells the layers when a step begins and ends; `layers` is empty for a model without experts."""

    def __init__(self, model: nn.Module, *, max_steps: int) -> None:
        """max_steps: those of the run, which bias schedules span."""
        self.layers = [module for module in model.modules() if isinstance(module, MoE)]
        self.max_steps = max_steps

    def begin(self, scale: Tensor | float) -> None:
        """Before the first micro-batch. scale: 1 / target tokens of the step, over all ranks, times a loss scale."""
        for layer in self.layers:
            layer.record.reset_buffers()
            layer.record.scale.add_(scale)

    @torch.no_grad()
    def end(self, number: int, *, skipped: Tensor, total: Callable[[Tensor], Tensor] = lambda x: x) -> RoutingReport:
        """After update `number`, counted from 0: moves the selection biases, unless the update was skipped, and reports.

        total: sums a tensor over all ranks that have other tokens of the same layers. Waits for nothing.
        """
        section: MoEConfig = self.layers[0].section
        experts = section.num_experts
        records = torch.stack([torch.cat([layer.record.counts.double(), layer.record.sums.double()]) for layer in self.layers])
        records = total(records)
        counts, named = records[:, :experts], zip(SUMS, records[:, experts:].unbind(1), strict=True)
        sums: dict[str, Tensor] = dict(named)
        for layer, load in zip(self.layers, counts, strict=True):
            self._move_bias(layer.router.selection_bias, load, number, skipped)
        even = counts.mean(1).clamp(min=1)
        biases = torch.stack([layer.router.selection_bias for layer in self.layers])
        means = {
            "load_max": counts.amax(1) / even,
            "load_min": counts.amin(1) / even,
            "entropy": sums["entropy"] / sums["tokens"].clamp(min=1),
        }
        if section.capacity_factor:
            means["dropped"] = sums["dropped"] / (sums["tokens"].clamp(min=1) * section.top_k)
        if section.bias_update_rate:
            means["bias"] = biases.amax(1) - biases.amin(1)
        weights = {"aux_loss": section.aux_loss_weight, "sequence_aux_loss": section.sequence_aux_loss_weight}
        weights["router_z_loss"] = section.z_loss_weight
        n_layers = self.layers[0].n_moe_layers
        return RoutingReport(
            {name: sums[name].sum() / n_layers for name, weight in weights.items() if weight},
            {f"moe/{name}": values.sum() / n_layers for name, values in means.items()},
        )

    def _move_bias(self, bias: Tensor, load: Tensor, number: int, skipped: Tensor) -> None:
        """b_i += rate * sign(mean load - load_i), from the assignments of a whole step (arXiv:2408.15664, algorithm 1)."""
        section = self.layers[0].section
        rate = section.bias_update_rate * bias_factor(section.bias_schedule, number / self.max_steps)
        if rate:
            step = rate * (load.mean() - load).sign()
            bias.add_(step.where(~skipped, 0).to(bias.dtype))


def bias_factor(schedule: str, done: float) -> float:
    """What bias_update_rate is multiplied with when a share `done` of the run is done, 0 to 1.

    constant: 1. cosine_decay: (1 + cos(pi * done)) / 2. linear_warmup: min(1, 10 * done), over the first tenth.
    """
    if schedule == "cosine_decay":
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if schedule == "linear_warmup":
        return min(1.0, 10 * done)
    assert schedule == "constant", schedule
    return 1.0
