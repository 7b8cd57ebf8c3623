"""Lion: the sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from forge.config.optimizer import Lion as LionConfig
from forge.optim.elementwise import ByParts, Part, descend, foreach, zeros_of


def lion(section: LionConfig, *, params: list[dict[str, Any]]) -> Lion:
    """Lion as its section has it."""
    return Lion(
        params,
        lr=section.lr,
        betas=section.betas,
        weight_decay=section.weight_decay,
        cautious=section.cautious,
    )


class Lion(ByParts):
    """Chen et al., arXiv:2302.06675, program 1, with m = 0 at first:

    w <- w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
    m <- beta2 * m + (1 - beta2) * g
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        cautious: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, cautious=cautious)

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": zeros_of(parameter)}

    def update(self, group: dict[str, Any], part: Part) -> None:
        (beta1, beta2), momenta = group["betas"], part.state("exp_avg")
        gradients = part.unless_skipped(part.gradients, momenta)  # moved towards itself it stays
        step = foreach._foreach_lerp(momenta, gradients, 1 - beta1)
        foreach._foreach_sign_(step)
        descend(group, part, step)
        foreach._foreach_lerp_(momenta, gradients, 1 - beta2)
