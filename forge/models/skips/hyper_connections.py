"""Manifold-constrained hyper-connections (mHC, arXiv:2512.24880): several residual streams.

Hidden states between layers are [batch, seq, streams * dim], stream after stream, through all
blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig

EPS = 1e-6


class StreamMixing(NamedTuple):
    """A layer's input, and the ways of its output and of the streams past the layer.

    entering: [batch, seq, dim]. taken: of the output by each stream, [batch, seq, streams].
    mixing: [batch, seq, source, target].
    """

    entering: Tensor
    taken: Tensor
    mixing: Tensor

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """x: [batch, seq, streams * dim], before the layer; y: [batch, seq, dim], its output ->
        the streams after the layer.
        """
        streams = x.unflatten(-1, (self.taken.shape[-1], -1)).to(self.mixing.dtype)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self.mixing.mT @ streams
        added = self.taken.unsqueeze(-1) * y.unsqueeze(-2)
        # Added in the flat shape: FSDP warns of a block whose output is a view.
        return (mixed.flatten(-2) + added.flatten(-2)).to(x.dtype)


class Streams(nn.Module):
    """The streams around one layer, in fp32 at least; tables of numbers by the token's streams."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.number, self.iterations = section.mhc_expansion_rate, section.sinkhorn_iterations
        assert section.norm_eps is not None
        self.eps = section.norm_eps
        rows = self.number * (self.number + 2)
        self.weight = nn.Parameter(torch.zeros(rows, self.number * section.dim))
        self.base = nn.Parameter(torch.zeros(rows))
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> StreamMixing:
        """x: [batch, seq, streams * dim]."""
        n = self.number
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            read = F.rms_norm(wide, wide.shape[-1:], None, self.eps)
            parts = F.linear(read, self.weight.to(wide.dtype)).split([n, n, n * n], -1)
            bases = self.base.to(wide.dtype).split([n, n, n * n])
            scales = self.scale.to(wide.dtype)
            read_of, taken, mixing = (
                part * scale + base for part, scale, base in zip(parts, scales, bases, strict=True)
            )
            shares = read_of.sigmoid() + EPS
            entering = (shares.unsqueeze(-2) @ wide.unflatten(-1, (n, -1))).squeeze(-2)
            mixing = doubly_stochastic(mixing.unflatten(-1, (n, n)), self.iterations)
        return StreamMixing(entering.to(x.dtype), 2 * taken.sigmoid(), mixing)


def doubly_stochastic(logits: Tensor, iterations: int) -> Tensor:
    """Positive matrices with columns that sum to 1, and rows that nearly do, of logits [..., n, n],
    by Sinkhorn and Knopp.
    """
    matrix = logits.softmax(-1) + EPS
    matrix = matrix / (matrix.sum(-2, keepdim=True) + EPS)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + EPS)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + EPS)
    return matrix


def spread_streams(x: Tensor, streams: int) -> Tensor:
    """[batch, seq, dim] -> equal streams, [batch, seq, streams * dim]."""
    return x if streams == 1 else x.repeat(1, 1, streams)


def collected(x: Tensor, streams: int) -> Tensor:
    """[batch, seq, streams * dim] -> the sum of the streams, [batch, seq, dim]."""
    return x if streams == 1 else x.unflatten(-1, (streams, -1)).sum(-2)
