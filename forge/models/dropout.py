"""Dropout and noise with the same values on every layout, in every micro-batch, after every resume.

A batch brings `noise`, 32 random bits for each position of each row, from the run's seed, the row's
number and the position (`forge.data.batches.noise`). A random number is a hash of these bits, the
name of the layer and the feature, so no generator has a state, and no rank has to know the numbers
of other ranks. Nothing is saved for backward: masks are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.tensors.counter_rng import hashed, rng_keys


class Noise:
    """The random bits of the tokens read by a model, int32 [batch, seq], shared by all modules that
    draw; with context parallelism the bits of this rank's tokens.
    """

    def __init__(self) -> None:
        self.bits: Tensor | None = None

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bind a function to the present bits, for every later call."""
        bits = self.bits

        def called(*args: Any, **kwargs: Any) -> Any:
            previous, self.bits = self.bits, bits
            try:
                return function(*args, **kwargs)
            finally:
                self.bits = previous

        return called


class Drawing(nn.Module):
    """Base of modules that draw random numbers, by their names in the whole model."""

    keys: Tensor

    def __init__(self, name: str, noise: Noise | None = None) -> None:
        super().__init__()
        self.name, self.noise = name, noise or Noise()
        # In a buffer, so that equal blocks share one compilation.
        self.register_buffer("keys", torch.empty(2, dtype=torch.int32), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        if not self.keys.is_meta:
            self.keys.copy_(rng_keys(self.name))

    def here(self) -> Tensor:
        """The bits of this module's tokens, [batch, seq]."""
        bits = self.noise.bits
        if bits is None:
            raise ValueError(
                f"{self.name} draws random numbers and was given no `noise`: an objective reads "
                "a batch by read(model, batch) of forge.objectives.objective"
            )
        return bits


class Dropout(Drawing):
    """Sets features to 0 with probability `rate`, and scales the others by 1 / (1 - rate), in
    training (arXiv:1207.0580). first: index in the whole layer of this rank's first feature.
    """

    def __init__(self, rate: float, name: str, noise: Noise | None = None) -> None:
        super().__init__(name, noise)
        self.rate, self.first = rate, 0

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, features] -> [batch, seq, features]."""
        if not self.training or not self.rate:
            return x
        return _Dropped.apply(x, self.here(), self.keys, self.rate, self.first)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply by a matrix [out, features] after dropout; saves x itself, a tensor that other
        layers may save too, and drops the same features again in backward.
        """
        if not self.training or not self.rate:
            return F.linear(x, weight)
        return _OfDropped.apply(x, weight, self.here(), self.keys, self.rate, self.first)


class StreamDropout(Dropout):
    """Dropout of outputs added to the residual stream, between layers."""


class Jitter(Drawing):
    """Adds uniform noise to embeddings in training (NEFTune, arXiv:2310.05914)."""

    def forward(self, x: Tensor, width: Tensor) -> Tensor:
        """x: [batch, seq, dim]. width: [batch, seq], bound of a token's noise times sqrt(dim), for
        NEFTune alpha / sqrt(tokens of the example).
        """
        if not self.training:
            return x
        # 32 signed bits: uniform from -1 to 1.
        drawn = bits_of(self.here(), self.keys, x.shape[-1]) * 2.0**-31
        scale = self.cut(width) * x.shape[-1] ** -0.5
        return x + (drawn * scale.unsqueeze(-1)).to(x.dtype)

    def cut(self, width: Tensor) -> Tensor:
        """Cut [batch, seq] of all tokens read down to this module's tokens."""
        return width


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int) -> Tensor:
        ctx.save_for_backward(bits, keys)
        ctx.how = rate, first
        return _dropped(x, bits, keys, rate, first)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        return _dropped_again(g, g, *ctx.saved_tensors, *ctx.how), None, None, None, None


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
        (g,) = gradients
        seen = _dropped_again(x, g, *noise, *ctx.how).flatten(0, -2)
        of_weight, of_x = g.flatten(0, -2).T @ seen, None
        if ctx.needs_input_grad[0]:
            of_x = _dropped_again(g @ weight, g, *noise, *ctx.how)
        return of_x, of_weight, None, None, None, None


def _dropped_again(
    x: Tensor, gradient: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int
) -> Tensor:
    """Drop the features of x that forward dropped.

    The keys are read behind the gradient, which is never above infinity: else a compiler draws once
    for both passes, and keeps masks and dropped tensors in place of the few bits of a token.
    """
    never = gradient[(0,) * gradient.ndim] > math.inf
    return _dropped(x, bits, keys ^ never.to(keys.dtype), rate, first)


def _dropped(x: Tensor, bits: Tensor, keys: Tensor, rate: float, first: int) -> Tensor:
    # A threshold of signed bits, exact to 2^-32.
    below = round(rate * 2**32) - 2**31
    gone = bits_of(bits, keys, x.shape[-1], first) < below
    return (x * (1 / (1 - rate))).masked_fill_(gone, 0)


def bits_of(bits: Tensor, keys: Tensor, features: int, first: int = 0) -> Tensor:
    """Draw 32 bits for each feature of each token: int32 [batch, seq, features]."""
    indices = torch.arange(first, first + features, dtype=torch.int32, device=bits.device)
    token_bits = bits.unsqueeze(-1)
    return hashed(indices, token_bits ^ keys[0], token_bits * 0x2C1B3C6D + keys[1])
