"""Adam with decoupled weight decay: torch's AdamW, and variants missing from torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizers.adam import Adam as AdamSection
from forge.config.optimizers.adam import AdamPax as AdamPaxSection
from forge.config.optimizers.adam import AdamW as AdamWSection
from forge.optim.adam_update import Options, Quantize, update_weight
from forge.optim.elementwise import (
    Elementwise,
    count_of,
    raise_counts,
    zeros_of,
)
from forge.tensors.local import local
from forge.tensors.masters import master
from forge.tensors.wide import stored_format, wide_dtype

HALF = {"bf16": torch.bfloat16}
"""Formats of moments, besides the format of the update."""


class AdamUpdates(Elementwise):
    """Base of Adam in all formats of weights and moments, by the update `forge.optim.adam_update`.

    m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g**2
    w <- w - lr * (m / c1 / (sqrt(v / c2 + eps_root) + eps) + weight_decay * w)

    with c1 = 1 - beta1**t, c2 = 1 - beta2**t in update t.
    """

    options = ("betas", "eps")

    def moments(self, parameter: Tensor) -> tuple[Tensor, Tensor, Quantize | None]:
        """Both moments, for reading and writing, and the quantization of the moments, if any."""
        state = self.state[parameter]
        return local(state["exp_avg"]), local(state["exp_avg_sq"]), None

    def numbers(self, group: dict[str, Any]) -> Options:
        return Options(group["betas"], group["eps"], cautious=group["cautious"])

    def begin(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Count the update of all parameters, in one kernel on a GPU."""
        found_inf = getattr(self, "found_inf", None)
        steps = [local(self.state[parameter]["step"]) for parameter in parameters]
        if steps:
            raise_counts(steps, 1.0 if found_inf is None else 1 - found_inf)

    def take(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        options, number = self.numbers(group), group.get("number", 0)
        found_inf, factor = getattr(self, "found_inf", None), getattr(self, "factor", None)
        for parameter in parameters:
            count, weight = local(self.state[parameter]["step"]), local(master(parameter))
            if not weight.numel():
                continue  # a rank without a row of the parameter
            first, second, quantize = self.moments(parameter)
            has_master = master(parameter) is not parameter
            update_weight(
                options._replace(quantize=quantize),
                weight,
                local(parameter) if has_master else None,
                local(parameter.grad),  # type: ignore[arg-type]
                first,
                second,
                count,
                factor,
                found_inf,
                self.rounding and self.rounding.noise(parameter, number),
                rate=group["lr"],
                decay=group["weight_decay"],
            )


class Adam(AdamUpdates):
    """AdamW (arXiv:1711.05101) with eps_root, as in optax, moments in 16 bits, and cautious decay.
    mu_dtype, nu_dtype: storage formats of m and v; the update uses m and v before rounding; fp32
    stands for the format of the update.
    """

    options = ("betas", "eps", "eps_root", "cautious")
    corrected = False

    def __init__(self, params: Iterable[Any], section: AdamSection) -> None:
        super().__init__(params, section)
        formats = {"exp_avg": section.mu_dtype, "exp_avg_sq": section.nu_dtype}
        self.formats = {key: HALF.get(name) for key, name in formats.items()}

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        moments = {key: zeros_of(parameter, to) for key, to in self.formats.items()}
        return {"step": count_of(parameter), **moments}

    def numbers(self, group: dict[str, Any]) -> Options:
        extra_options = {"eps_root": group["eps_root"], "corrected": self.corrected}
        return super().numbers(group)._replace(**extra_options)

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        state = super().loaded(parameter, found)
        for key, to in self.formats.items():  # the checkpoint's formats may differ
            state[key] = state[key].to(to or wide_dtype(parameter))
        return state


class AdamPax(Adam):
    """The Adam of Pax and MaxText: moments are means from the first update on, by corrected decay
    rates (Adafactor, arXiv:1804.04235, section 7.1):

    m <- b1 * m + (1 - b1) * g with b1 = beta1 * (1 - beta1**(t - 1)) / (1 - beta1**t)

    and likewise v. In exact numbers the updates equal Adam's.
    """

    corrected = True

    def __init__(self, params: Iterable[Any], section: AdamPaxSection) -> None:
        super().__init__(params, section)


FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


def adamw(params: list[dict[str, Any]], section: AdamWSection) -> torch.optim.Optimizer:
    """Make torch's AdamW (arXiv:1711.05101), or forge's own for options missing from torch.

    Fused where `section.fused` is set and every parameter's device has the kernel; else torch
    chooses. For weights in 16 bits torch would compute the update in 16 bits, and it takes no
    gradients in 16 bits of weights in fp32 (2.11 to 2.13).
    """
    if not section.is_torchs or stored_format(params[0]["params"][0]).itemsize == 2:
        return Adam(params, section)
    devices = {parameter.device.type for group in params for parameter in group["params"]}
    beta1, beta2 = section.betas
    return torch.optim.AdamW(
        params,
        lr=section.lr,
        betas=(float(beta1), float(beta2)),
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True if section.fused and devices.issubset(FUSED_DEVICES) else None,
    )
