"""Adam with decoupled weight decay, in the variants that torch's AdamW does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizer import Adam as AdamConfig
from forge.config.optimizers import AdamPax as AdamPaxConfig
from forge.masters import master
from forge.optim.adam_update import Options, update
from forge.optim.elementwise import Elementwise, count_of, wide_dtype, zeros_of
from forge.owned import local


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
"""Formats of moments other than that of the update."""


class AdamUpdates(Elementwise):
    """What Adam is in all formats of weights and moments: one update, `forge.optim.adam_update`.

    m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g**2
    w <- w - lr * (m / c1 / (sqrt(v / c2 + eps_root) + eps) + weight_decay * w)

    with c1 = 1 - beta1**t, c2 = 1 - beta2**t in update t.
    """

    def moments(self, parameter: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Both, as they are read and written, and whether they are quantized."""
        state = self.state[parameter]
        return local(state["exp_avg"]), local(state["exp_avg_sq"]), False

    def options(self, group: dict[str, Any]) -> Options:
        return Options(group["betas"], group["eps"], cautious=group["cautious"])

    def take(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        options, number = self.options(group), group.get("number", 0)
        found_inf, factor = getattr(self, "found_inf", None), getattr(self, "factor", None)
        for parameter in parameters:
            count, weight = local(self.state[parameter]["step"]), local(master(parameter))
            count.add_(1.0 if found_inf is None else 1 - found_inf)
            if not weight.numel():
                continue  # a rank without a row of it
            first, second, quantized = self.moments(parameter)
            has_master = master(parameter) is not parameter
            update(
                options._replace(quantized=quantized),
                weight,
                local(parameter) if has_master else None,
                local(parameter.grad),  # type: ignore[arg-type]
                first,
                second,
                count.clamp(min=1),  # 0 in the first update of all, if it is skipped
                factor,
                found_inf,
                self.rounding and self.rounding.noise(parameter, number),
                rate=group["lr"],
                decay=group["weight_decay"],
            )


class Adam(AdamUpdates):
    """AdamW (arXiv:1711.05101) with eps_root, as optax has it, moments in 16 bits, and cautious
    decay. mu_dtype, nu_dtype: what m and v are kept in, of whose values before rounding the update
    is made; fp32 stands for the format of the update.
    """

    corrected = False

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
        kept = {key: zeros_of(parameter, to) for key, to in self.formats.items()}
        return {"step": count_of(parameter), **kept}

    def options(self, group: dict[str, Any]) -> Options:
        more = {"eps_root": group["eps_root"], "corrected": self.corrected}
        return super().options(group)._replace(**more)

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = super().loaded(parameter, found)
        for key, to in self.formats.items():  # which may be others than they were
            kept[key] = kept[key].to(to or wide_dtype(parameter))
        return kept


class AdamPax(Adam):
    """The Adam of Pax and MaxText: moments are means from the first update on, since their decay
    rates are corrected (Adafactor, arXiv:1804.04235, section 7.1):

    m <- b1 * m + (1 - b1) * g with b1 = beta1 * (1 - beta1**(t - 1)) / (1 - beta1**t)

    and the same of v. In exact numbers its updates are those of Adam.
    """

    corrected = True
