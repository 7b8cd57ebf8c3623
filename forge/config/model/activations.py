"""What a layer keeps of one token until its backward pass, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FP32, INT64 = 4, 8


@dataclass(frozen=True, kw_only=True)
class Named:
    """A tensor that recomputation may keep. bytes: of a token on one rank. flops: of a token, on
    all ranks, to make it.
    """

    bytes: float
    flops: float = 0.0

    def __add__(self, other: Named) -> Named:
        return Named(bytes=self.bytes + other.bytes, flops=self.flops + other.flops)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a layer keeps of a token on one rank, without its input.

    all: bytes without recomputation. named: by the names of `forge.config.recompute`.
    """

    all: float
    named: Mapping[str, Named]


def merged(*tables: Mapping[str, Named]) -> dict[str, Named]:
    """All of them; what several have is added up."""
    found: dict[str, Named] = {}
    for name, one in (item for table in tables for item in table.items()):
        found[name] = found[name] + one if name in found else one
    return found


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """How numbers are held on a rank.

    width: bytes of one in matrix products. seq_len: tokens of a sequence. tp: ranks that share
    heads and widths, and tokens_cut that share the tokens between layers. cuda: whether norms are
    fused. masked: whether attention is given a mask. residual: bytes of a number between layers.
    norms_frozen: whether weights of norms have no gradient.
    """

    width: int
    seq_len: int
    tp: int
    cuda: bool
    masked: bool = False
    tokens_cut: int = 1
    residual: int = FP32
    norms_frozen: bool = False

    def product(self, made: float, read: int, ranks: int = 0) -> Named:
        """What a matrix makes of a vector. ranks: that share it; 0 = tp."""
        return Named(bytes=self.width * made / (ranks or self.tp), flops=2.0 * made * read)

    def to_stream(self, dim: int, read: int) -> Named:
        """What a layer ends with, [dim]."""
        return self.product(dim, read, self.tokens_cut)

    def rms_norm(self, dim: int, width: int) -> int:
        """The input and the root, or, on a CPU, where no kernel fuses it, an fp32 copy and, for
        the gradient of its weights, the ratio. width: bytes of a number of the input.
        """
        copies = 1 if self.norms_frozen else 2
        return FP32 + (width * dim if self.cuda else copies * FP32 * dim)

    def norm(self, kind: str, dim: int, width: int) -> int:
        """The same of either norm_type; LayerNorm keeps the input, mean and deviation."""
        return width * dim + 2 * FP32 if kind == "layernorm" else self.rms_norm(dim, width)
