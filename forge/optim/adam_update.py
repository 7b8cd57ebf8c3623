"""The update of AdamW for a parameter in any formats: a single function, compiled on CUDA."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from forge.config.optimizers.compiler import compiler_fault
from forge.optim import low_bit_kernel
from forge.optim.elementwise import correction
from forge.optim.rounding import Noise, stochastic

Quantize = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


class Options(NamedTuple):
    """Options equal in all updates, and compiled in.

    corrected: whether decay rates are corrected, as in Pax. quantize: of moments of torchao's
    classes, (moment, values) -> (codes, scale); None = moments are plain tensors.
    """

    betas: tuple[float, float]
    eps: float
    eps_root: float = 0.0
    cautious: bool = False
    corrected: bool = False
    quantize: Quantize | None = None


def update_weight(
    options: Options, weight: Tensor, *others: Any, rate: float, decay: float
) -> None:
    """Update in place, see `_update`. On CUDA it is a single kernel that reads and writes each
    value once: compiled, or of `forge.optim.low_bit_kernel` with moments of 8 or 4 bits.
    """
    if not weight.is_cuda:
        act: Any = _update
        act(options, weight, *others, rate, decay)
        return
    if options.quantize:
        _, gradient, first, *_ = others
        if low_bit_kernel.kernel_takes(options, weight, gradient, first):
            low_bit_kernel.update_by_kernel(options, weight, *others, rate=rate, decay=decay)
            return
    # Numbers that change from update to update are tensors, to avoid a compilation for each value.
    numbers = [torch.tensor(number, dtype=torch.float32) for number in (rate, decay)]
    with torch._dynamo.utils.disable_cache_limit():
        _kernel()(options, weight, *others, *numbers)


class Kernel:
    """The compiled update; uncompiled, after a single warning, where the compiler cannot work."""

    def __init__(self, compiled: Callable[..., None]) -> None:
        self.act = compiled

    def __call__(self, *arguments: Any) -> None:
        from torch._dynamo.exc import BackendCompilerFailed  # takes seconds, and CUDA has it

        try:
            self.act(*arguments)
        except BackendCompilerFailed as error:
            # A compilation fails before it changes a value. No other error is caught.
            lines = str(error.inner_exception).strip().splitlines() or [repr(error)]
            message = f"AdamW's update is not compiled: {compiler_fault() or lines[0]}"
            hint = "it runs in many kernels, slower; python -m forge.doctor says what is missing"
            warnings.warn(f"{message}; {hint}", stacklevel=2)
            self.act = _update
            self.act(*arguments)


@cache
def _kernel() -> Kernel:
    return Kernel(torch.compile(_update, fullgraph=True, dynamic=False))


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
    second: the moments. count: of updates, including the present; 0 in a skipped first.
    factor: of the gradient. found_inf: 1 = change nothing. noise: for the rounding of `weight` in
    16 bits.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    (beta1, beta2), old_w = options.betas, weight.to(wide)
    g = gradient.to(wide)
    if options.quantize:
        old_m, old_v = first.dequantize(), second.dequantize()
    else:
        old_m, old_v = first.to(wide), second.to(wide)
    if factor is not None:
        g = g * factor
    number = count.to(wide).clamp(min=1)
    c1, c2 = correction(number, beta1), correction(number, beta2)
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
    bad = None if found_inf is None else found_inf.bool()
    # By selection, not by a factor of 0: a gradient with NaN would spread.
    w = w if bad is None else torch.where(bad, old_w, w)
    for moment, old, new in ((first, old_m, m), (second, old_v, v)):
        if options.quantize is None:
            moment.copy_(new if bad is None else torch.where(bad, old, new))
            continue
        # Codes are selected: values that are quantized again need not get the codes they had.
        stored: Any = moment
        fresh_parts = options.quantize(moment, new)
        for part, fresh in zip((stored.codes, stored.scale), fresh_parts, strict=True):
            part.copy_(fresh if bad is None else torch.where(bad, part, fresh))
    weight.copy_(w if noise is None else stochastic(w, noise))
    if rounded is not None:
        rounded.copy_(w)
