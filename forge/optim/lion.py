"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from forge.config.optimizers.lion import Lion as LionSection
from forge.optim.elementwise import ByParts, Part, descend, foreach, zeros_of


class Lion(ByParts):
    """Lion (Chen et al., arXiv:2302.06675, program 1), with m = 0 at first:

    w <- w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
    m <- beta2 * m + (1 - beta2) * g
    """

    options = ("betas", "cautious")

    def __init__(self, params: Iterable[Any], section: LionSection) -> None:
        super().__init__(params, section)

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": zeros_of(parameter)}

    def update(self, group: dict[str, Any], part: Part) -> None:
        (beta1, beta2), momenta = group["betas"], part.state("exp_avg")
        # In a skipped update the momentum moves towards itself, and so stays.
        gradients = part.unless_skipped(part.gradients, momenta)
        step = foreach._foreach_lerp(momenta, gradients, 1 - beta1)
        foreach._foreach_sign_(step)
        descend(group, part, step)
        foreach._foreach_lerp_(momenta, gradients, 1 - beta2)
