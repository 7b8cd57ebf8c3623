"""The update of AdamW for a parameter in any formats: a single function, compiled on CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from forge.optim.elementwise import correction
from forge.optim.rounding import Noise, stochastic


class Options(NamedTuple):
    """Options equal in all updates, and compiled in.

    corrected: whether decay rates are corrected, as in Pax. quantized: whether the moments are of
    torchao's classes.
    """

    betas: tuple[float, float]
    eps: float
    eps_root: float = 0.0
    cautious: bool = False
    corrected: bool = False
    quantized: bool = False


def update_weight(
    options: Options, weight: Tensor, *others: Any, rate: float, decay: float
) -> None:
    """Update in place, see `_update`; on CUDA a single kernel reads and writes each value once."""
    if not weight.is_cuda:
        act: Any = _update
        return act(options, weight, *others, rate, decay)
    # Numbers that change from update to update are tensors, to avoid a compilation for each value.
    numbers = [torch.tensor(number, dtype=torch.float32) for number in (rate, decay)]
    with torch._dynamo.utils.disable_cache_limit():
        return _compiled()(options, weight, *others, *numbers)


@cache
def _compiled() -> Any:
    return torch.compile(_update, fullgraph=True, dynamic=False)


def _update(
    options: Options,
    weight: Tensor,
    rounded: Tensor | None,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: Tensor,
    factor: Tensor | None,
    found_inf: Tensor | None,
    noise: Noise | None,
    rate: Any,
    decay: Any,
) -> None:
    """Compute in fp32 or wider, and write each value in its own format.

    weight: the trained values. rounded: the model's separate copy in 16 bits, if any. first,
    second: the moments. count: of updates, including the present. factor: of the gradient.
    found_inf: 1 = change nothing. noise: for the rounding of `weight` in 16 bits.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    (beta1, beta2), old_w = options.betas, weight.to(wide)
    g = gradient.to(wide)
    if options.quantized:
        old_m, old_v = first.dequantize(), second.dequantize()
    else:
        old_m, old_v = first.to(wide), second.to(wide)
    if factor is not None:
        g = g * factor
    c1, c2 = correction(count.to(wide), beta1), correction(count.to(wide), beta2)
    if options.corrected:  # means from the first update on
        m = old_m.lerp(g, (1 - beta1) / c1)
        v = old_v.lerp(g * g, (1 - beta2) / c2)
        mean, square = m, v
    else:
        m, v = old_m.lerp(g, 1 - beta1), old_v.lerp(g * g, 1 - beta2)
        mean, square = m / c1, v / c2
    step = mean / ((square + options.eps_root if options.eps_root else square).sqrt() + options.eps)
    decayed = torch.where(old_w * step >= 0, old_w, 0.0) if options.cautious else old_w
    w = old_w - rate * (step + decay * decayed)
    if found_inf is not None:
        # By selection, not by a factor of 0: a gradient with NaN would spread.
        bad = found_inf.bool()
        w, m, v = (
            torch.where(bad, old_w, w),
            torch.where(bad, old_m, m),
            torch.where(bad, old_v, v),
        )
    first.copy_(m)
    second.copy_(v)
    weight.copy_(w if noise is None else stochastic(w, noise))
    if rounded is not None:
        rounded.copy_(w)
