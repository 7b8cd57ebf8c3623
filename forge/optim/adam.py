"""Adam with decoupled weight decay, in the variants that torch's AdamW does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizer import Adam as AdamConfig
from forge.config.optimizers import AdamPax as AdamPaxConfig
from forge.optim.elementwise import Elementwise, Part, correction, count_of, descend, foreach


def adam_pax(section: AdamPaxConfig, *, params: list[dict[str, Any]]) -> AdamPax:
    """adam_pax as its section has it."""
    return AdamPax(params, **options_of(section))


def options_of(section: AdamConfig) -> dict[str, Any]:
    """Keywords of Adam."""
    return {
        "lr": section.lr,
        "betas": section.betas,
        "eps": section.eps,
        "eps_root": section.eps_root,
        "mu_dtype": section.mu_dtype,
        "nu_dtype": section.nu_dtype,
        "weight_decay": section.weight_decay,
        "cautious": section.cautious,
    }


HALF = {"bf16": torch.bfloat16}
"""Formats of moments other than that of the weights."""


class Adam(Elementwise):
    """AdamW (arXiv:1711.05101) with eps_root, as optax has it, moments in 16 bits, and cautious
    decay:

    m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g**2
    w <- w - lr * (m / c1 / (sqrt(v / c2 + eps_root) + eps) + weight_decay * w)

    with c1 = 1 - beta1**t, c2 = 1 - beta2**t in update t. mu_dtype, nu_dtype: what m and v are kept
    in, of whose values before rounding the update is made; fp32 stands for the format of the
    weights.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        eps_root: float = 0.0,
        mu_dtype: str = "fp32",
        nu_dtype: str = "fp32",
        weight_decay: float = 0.0,
        cautious: bool = False,
    ) -> None:
        super().__init__(
            groups,
            lr=lr,
            betas=tuple(map(float, betas)),
            eps=eps,
            eps_root=eps_root,
            weight_decay=weight_decay,
            cautious=cautious,
        )
        self.formats = {"exp_avg": HALF.get(mu_dtype), "exp_avg_sq": HALF.get(nu_dtype)}

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        kept = {key: torch.zeros_like(parameter, dtype=to) for key, to in self.formats.items()}
        return {"step": count_of(parameter), **kept}

    def update(self, group: dict[str, Any], part: Part) -> None:
        (beta1, beta2), counts = group["betas"], part.count()
        first = self.moment(part, "exp_avg", part.gradients, beta1, counts)
        squares = foreach._foreach_mul(part.gradients, part.gradients)
        second = self.moment(part, "exp_avg_sq", squares, beta2, counts)
        means = self.means(first, beta1, counts)
        roots = self.means(second, beta2, counts)
        if group["eps_root"]:
            foreach._foreach_add_(roots, group["eps_root"])
        foreach._foreach_sqrt_(roots)
        foreach._foreach_add_(roots, group["eps"])
        foreach._foreach_div_(means, roots)
        descend(group, part, means)

    def moment(
        self, part: Part, key: str, values: list[Tensor], beta: float, counts: Tensor
    ) -> list[Tensor]:
        """Take in `values`; returns the moments in the format of the weights."""
        kept = part.state(key)
        before = kept
        if self.formats[key] is not None:
            before = [old.to(new.dtype) for old, new in zip(kept, values, strict=True)]
        values = part.unless_skipped(values, before)
        moments = self.interpolated(before, values, beta, counts)
        foreach._foreach_copy_(kept, moments)
        return moments

    def interpolated(
        self, before: list[Tensor], values: list[Tensor], beta: float, counts: Tensor
    ) -> list[Tensor]:
        return foreach._foreach_lerp(before, values, 1 - beta)

    def means(self, moments: list[Tensor], beta: float, counts: Tensor) -> list[Tensor]:
        """Moments without the 0 that they began with."""
        return foreach._foreach_div(moments, [*correction(counts, beta).unbind()])

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = super().loaded(parameter, found)
        for key, to in self.formats.items():  # which may be others than they were
            kept[key] = kept[key].to(to or parameter.dtype)
        return kept


class AdamPax(Adam):
    """The Adam of Pax and MaxText: moments are means from the first update on, since their decay
    rates are corrected (Adafactor, arXiv:1804.04235, section 7.1):

    m <- b1 * m + (1 - b1) * g with b1 = beta1 * (1 - beta1**(t - 1)) / (1 - beta1**t)

    and the same of v. In exact numbers its updates are those of Adam.
    """

    def interpolated(
        self, before: list[Tensor], values: list[Tensor], beta: float, counts: Tensor
    ) -> list[Tensor]:
        shares = (1 - beta) / correction(counts, beta)  # 1 - b1
        return foreach._foreach_lerp(before, values, [*shares.unbind()])

    def means(self, moments: list[Tensor], beta: float, counts: Tensor) -> list[Tensor]:
        return [moment.clone() for moment in moments]
