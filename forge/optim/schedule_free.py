"""Schedule-free AdamW: the weights for evaluation are a mean of the weights moved by steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizers.schedule_free import ScheduleFreeAdamW as ScheduleFreeSection
from forge.optim.elementwise import (
    ByParts,
    Part,
    correction,
    count_of,
    foreach,
    zeros_of,
)
from forge.tensors.local import local
from forge.tensors.wide import widest


class ScheduleFreeAdamW(ByParts):
    """Schedule-free AdamW, algorithm 1 of arXiv:2405.15682, update t = 1, 2, ..., gradients g at y:

    rate = lr * min(1, t / schedule_free_warmup_steps) * sqrt(1 - beta2**t)
    v <- beta2 * v + (1 - beta2) * g**2
    z <- z - rate * (g / (sqrt(v) + eps) + weight_decay * y)
    x <- (1 - c) * x + c * z,  c = rate**2 / (sum of rate**2 so far)
    y <- (1 - beta1) * z + beta1 * x

    The weights of the model are y, in eval mode x. x is not stored, but computed from y and z on
    the line through both, so beta1 is not 0. While lr is 0 nothing moves.
    """

    options = ("betas", "eps", "schedule_free_warmup_steps")

    def __init__(self, params: Iterable[Any], section: ScheduleFreeSection) -> None:
        super().__init__(params, section)

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        device = parameter.device
        return {
            "step": count_of(parameter),
            "weight_sum": torch.zeros((), dtype=widest(device), device=device),
            "z": parameter.detach().clone(),
            "exp_avg_sq": zeros_of(parameter),
        }

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Load a state, with the sum converted to the widest format of this device."""
        total = found["weight_sum"].to(widest(parameter.device))
        return super().loaded(parameter, found | {"weight_sum": total})

    def update(self, group: dict[str, Any], part: Part) -> None:
        (beta1, beta2), counts = group["betas"], part.count()
        rates = part.times(group["lr"]) * correction(counts, beta2).sqrt()
        if warmup_steps := group["schedule_free_warmup_steps"]:
            rates = rates * (counts / warmup_steps).clamp(max=1)
        sums = part.state("weight_sum")
        foreach._foreach_add_(sums, [*rates.square().unbind()])
        total = torch.stack(sums)
        total = total.clamp(min=torch.finfo(total.dtype).tiny)  # 0 while lr is 0
        shares = (rates.square() / total).to(rates.dtype)
        z, second = part.state("z"), part.state("exp_avg_sq")
        squares = part.unless_skipped(foreach._foreach_mul(part.gradients, part.gradients), second)
        foreach._foreach_lerp_(second, squares, 1 - beta2)
        roots = foreach._foreach_sqrt(second)
        foreach._foreach_add_(roots, group["eps"])
        zeros = [torch.zeros_like(gradient) for gradient in part.gradients]
        steps = foreach._foreach_div(part.unless_skipped(part.gradients, zeros), roots)
        if group["weight_decay"]:
            foreach._foreach_add_(steps, part.weights, alpha=group["weight_decay"])
        foreach._foreach_mul_(steps, [*rates.unbind()])
        # x is eliminated from the update of y: y moves by c towards z, then with the new z.
        foreach._foreach_lerp_(part.weights, z, [*shares.unbind()])
        foreach._foreach_sub_(z, steps)
        foreach._foreach_mul_(steps, [*(1 - beta1 * (1 - shares)).unbind()])
        foreach._foreach_sub_(part.weights, steps)

    @torch.no_grad()
    def eval(self) -> None:
        """Put x in place of y; y is kept for `train`, equal to the bit."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter, {})
                if "z" in state and "y" not in state:
                    state["y"] = parameter.detach().clone()
                    local(parameter).lerp_(local(state["z"]), 1 - 1 / group["betas"][0])

    @torch.no_grad()
    def train(self) -> None:
        """Put y in place again."""
        for parameter, state in self.state.items():
            if "y" in state:
                parameter.copy_(state.pop("y"))
