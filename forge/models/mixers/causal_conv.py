"""Causal convolutions of channels over the last few tokens of a document."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def wide(x: Tensor) -> Tensor:
    """Convert to fp32, or keep a wider format."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def causal_conv(
    x: Tensor,
    weight: Tensor,
    before: Tensor | None,
    places: Tensor | None,
    bias: Tensor | None = None,
    *,
    apart: int = 1,
) -> tuple[Tensor, Tensor]:
    """Convolve each channel causally; at least in fp32.

    x: [batch, seq, channels]. weight: [channels, taps], the last tap for the present token; taps
    are `apart` tokens apart. before: the (taps - 1) * apart tokens before x, None = zeros. places:
    [batch, seq], positions of tokens in their documents; None = a single document. bias:
    [channels]. Returns as x, and the last (taps - 1) * apart tokens.
    """
    back, seq = (weight.shape[1] - 1) * apart, x.shape[1]
    read = F.pad(x, (0, 0, back, 0)) if before is None else torch.cat((before, x), 1)
    inputs, taps = wide(read), wide(weight)
    output = inputs[:, back:] * taps[:, -1]
    for first in range(0, back, apart):
        part = inputs[:, first : first + seq] * taps[:, first // apart]
        if places is not None:
            part = part.where((places >= back - first).unsqueeze(-1), 0)
        output = output + part
    return output if bias is None else output + wide(bias), read[:, seq:]


class ConvolutionMixer(nn.Module):
    """Base of mixers with causal convolutions. activated: whether SiLU follows these."""

    activated = True

    def convolve(
        self,
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None],
        tails: Sequence[Tensor | None],
        places: Tensor | None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Convolve each input; arguments and results as in `causal_conv`."""
        apply = short_conv if self.activated else causal_conv
        of_inputs = zip(inputs, weights, biases, tails, strict=True)
        return [apply(x, conv, tail, places, bias) for x, conv, bias, tail in of_inputs]


def short_conv(
    x: Tensor,
    weight: Tensor,
    before: Tensor | None,
    places: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Apply `causal_conv`, then SiLU; arguments and results as there."""
    output, tail = causal_conv(x, weight, before, places, bias)
    return F.silu(output), tail
