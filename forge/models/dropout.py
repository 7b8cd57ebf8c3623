"""Dropout and noise that are the same on every layout, micro-batch and after every resume.

A batch brings `noise`, 32 random bits of each place that follow from the run's seed, the number of
the row and the position (`forge.data.batches.noise`). A random number is a hash of these, of the
name of the layer and of the feature, so that no generator has a state, and no rank has to know what
others draw. Nothing is kept for backward: masks are made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.tensors.counter_rng import hashed, keys_of


class Noise:
    """Shared by the modules of a model that draw: the bits of the tokens that it reads, int32
    [batch, seq], with context parallelism of those that are here.
    """

    def __init__(self) -> None:
        self.bits: Tensor | None = None

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which whenever it is called reads the bits that there are now."""
        bits = self.bits

        def called(*args: Any, **kwargs: Any) -> Any:
            previous, self.bits = self.bits, bits
            try:
                return function(*args, **kwargs)
            finally:
                self.bits = previous

        return called


class Drawing(nn.Module):
    """Base of modules that draw, each by its name in the whole model."""

    keys: Tensor

    def __init__(self, name: str, noise: Noise | None = None) -> None:
        super().__init__()
        self.name, self.noise = name, noise or Noise()
        # In a buffer, so that equal blocks share one compilation.
        self.register_buffer("keys", torch.empty(2, dtype=torch.int32), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if not self.keys.is_meta:
            self.keys.copy_(keys_of(self.name))

    def here(self) -> Tensor:
        """The bits of the tokens that this module is given, [batch, seq]."""
        bits = self.noise.bits
        if bits is None:
            raise ValueError(
                f"{self.name} draws random numbers and was given no `noise`: an objective reads "
                "a batch by read(model, batch) of forge.objectives.objective"
            )
        return bits


class Dropout(Drawing):
    """Puts features to 0 with probability `rate`, and the others up by 1 / (1 - rate), in training
    (arXiv:1207.0580). first: which feature of the whole layer's is the first one here.
    """

    def __init__(self, rate: float, name: str, noise: Noise | None = None) -> None:
        super().__init__(name, noise)
        self.rate, self.first = rate, 0

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, features] -> the same."""
        if not self.training or not self.rate:
            return x
        return _Dropped.apply(x, self.here(), self.keys, self.rate, self.first)  # type: ignore[return-value]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """What a matrix [out, features] makes of it; kept is x, which others may keep too, and what
        is dropped of it is dropped again in backward.
        """
        if not self.training or not self.rate:
            return F.linear(x, weight)
        return _OfDropped.apply(x, weight, self.here(), self.keys, self.rate, self.first)  # type: ignore[return-value]


class StreamDropout(Dropout):
    """The same of what goes into the residual stream, between layers."""


class Jitter(Drawing):
    """Adds uniform noise to embeddings in training (NEFTune, arXiv:2310.05914)."""

    def forward(self, x: Tensor, width: Tensor) -> Tensor:
        """x: [batch, seq, dim]. width: [batch, seq], noise of a token is within width / sqrt(dim),
        for NEFTune alpha / sqrt(tokens of its example).
        """
        if not self.training:
            return x
        drawn = bits_of(self.here(), self.keys, x.shape[-1]) * 2.0**-31
        scale = self.cut(width) * x.shape[-1] ** -0.5
        return x + (drawn * scale.unsqueeze(-1)).to(x.dtype)

    def cut(self, width: Tensor) -> Tensor:
        """[batch, seq] of the tokens that are read -> of those that this module is given."""
        return width


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int) -> Tensor:
        ctx.save_for_backward(bits, keys)
        ctx.how = rate, first
        return _dropped(x, bits, keys, rate, first)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(gradients[0], *ctx.saved_tensors, *ctx.how), None, None, None, None


class _OfDropped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bits, keys)
        ctx.how = rate, first
        return F.linear(_dropped(x, bits, keys, rate, first), weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *noise = ctx.saved_tensors
        seen = _dropped(x, *noise, *ctx.how).flatten(0, -2)
        of_weight = gradients[0].flatten(0, -2).T @ seen
        of_x = (
            _dropped(gradients[0] @ weight, *noise, *ctx.how) if ctx.needs_input_grad[0] else None
        )
        return of_x, of_weight, None, None, None, None


def _dropped(x: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int) -> Tensor:
    below = round(rate * 2**32) - 2**31
    gone = bits_of(bits, keys, x.shape[-1], first) < below
    return (x * (1 / (1 - rate))).masked_fill_(gone, 0)


def bits_of(bits: Tensor, keys: Tensor, features: int, first: int = 0) -> Tensor:
    """32 bits of each feature of each place: int32 [batch, seq, features]."""
    indices = torch.arange(first, first + features, dtype=torch.int32, device=bits.device)
    token_bits = bits.unsqueeze(-1)
    return hashed(indices, token_bits ^ keys[0], token_bits * 0x2C1B3C6D + keys[1])
