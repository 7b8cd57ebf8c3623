"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizer import Lion as LionConfig
from forge.owned import local

foreach: Any = torch  # whose functions on lists of tensors pyright takes for private


def lion(section: LionConfig, *, params: list[dict[str, Any]]) -> Lion:
    """Lion as its section has it."""
    return Lion(params, lr=section.lr, betas=section.betas, weight_decay=section.weight_decay)


class Lion(torch.optim.Optimizer):
    """Chen et al., arXiv:2302.06675, program 1, with m = 0 at first:

    w <- w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
    m <- beta2 * m + (1 - beta2) * g

    As torch's fused optimizers do, it leaves every value as it is where the attribute `found_inf`
    is a tensor of 1.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group, getattr(self, "found_inf", None))
        return loss

    def _update(self, group: dict[str, Any], found_inf: Tensor | None) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
        weights = [local(p) for p in parameters]
        momenta = [local(self.state[p]["exp_avg"]) for p in parameters]
        gradients = [local(p.grad) for p in parameters]
        (beta1, beta2), rate = group["betas"], group["lr"]
        if found_inf is not None:
            # A momentum moved towards itself stays, and so do weights at a rate of 0.
            bad = found_inf.bool()
            both = zip(momenta, gradients, strict=True)
            gradients = [torch.where(bad, momentum, gradient) for momentum, gradient in both]
            rate = rate * (1 - found_inf)
        step = foreach._foreach_lerp(momenta, gradients, 1 - beta1)
        foreach._foreach_sign_(step)
        foreach._foreach_mul_(step, rate)
        foreach._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        foreach._foreach_sub_(weights, step)
        foreach._foreach_lerp_(momenta, gradients, 1 - beta2)
