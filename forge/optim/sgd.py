"""SGD with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizers.sgd import SGD as SGDSection
from forge.optim.elementwise import ByParts, Part, descend, foreach, zeros_of


class SGD(ByParts):
    """torch.optim.SGD with decoupled weight decay, as in every optimizer of forge (SGDW,
    arXiv:1711.05101, algorithm 1):

    m <- momentum * m + g;  u = g + momentum * m if nesterov else m
    w <- w - lr * (u + weight_decay * w)

    Without momentum no state, and u = g.
    """

    options = ("momentum", "nesterov", "cautious")

    def __init__(self, params: Iterable[Any], section: SGDSection) -> None:
        super().__init__(params, section)

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_of(parameter)} if group["momentum"] else {}

    def update(self, group: dict[str, Any], part: Part) -> None:
        # A skipped update gets gradients of 0 and a rate of 0, so NaN cannot reach the weights.
        zeros = [torch.zeros_like(gradient) for gradient in part.gradients]
        updates = part.unless_skipped(foreach._foreach_mul(part.gradients, 1.0), zeros)
        if group["momentum"]:
            momenta, beta = part.state("momentum_buffer"), group["momentum"]
            gradients = updates
            foreach._foreach_mul_(momenta, 1 - part.times(1 - beta))
            foreach._foreach_add_(momenta, gradients)
            updates = foreach._foreach_mul(momenta, beta if group["nesterov"] else 1.0)
            if group["nesterov"]:
                foreach._foreach_add_(updates, gradients)
        descend(group, part, updates)
