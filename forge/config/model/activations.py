"""Bytes of one token kept by a layer until its backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FP32, INT64 = 4, 8


@dataclass(frozen=True, kw_only=True)
class Named:
    """A tensor eligible to be kept under recomputation.

    bytes: of a token on one rank. flops: to compute the tensor of a token, on all ranks.
    """

    bytes: float
    flops: float = 0.0

    def __add__(self, other: Named) -> Named:
        return Named(bytes=self.bytes + other.bytes, flops=self.flops + other.flops)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The memory kept by a layer for a token on one rank, without the layer's input.

    all: bytes without recomputation. named: by the names of `forge.config.recompute`. remade: bytes
    of `all` that a compiled block computes again, as its kernels do so in passing.
    """

    all: float
    named: Mapping[str, Named]
    remade: float = 0.0


def merge_tables(*tables: Mapping[str, Named]) -> dict[str, Named]:
    """Merge the tables; tensors of one name are added up."""
    totals: dict[str, Named] = {}
    for name, tensor in (item for table in tables for item in table.items()):
        totals[name] = totals[name] + tensor if name in totals else tensor
    return totals


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The formats and layout of numbers on a rank.

    width: bytes of a number in matrix products. seq_len: tokens of a sequence. tp: ranks with
    shares of heads and widths. tokens_cut: ranks with shares of the tokens between layers. masked:
    whether attention is given a mask. passes_states: whether recurrent mixers read runs of tokens
    of a sequence, and pass states on. keys: kept for a token of the rank, under context
    parallelism. around: whether keys go round a ring, and neither repeated heads nor scores are
    kept. normed: whether RMSNorm keeps its normalised input too.
    """

    width: int
    seq_len: int
    tp: int
    masked: bool = False
    tokens_cut: int = 1
    passes_states: bool = False
    keys: float = 1.0
    around: bool = False
    normed: bool = False

    @property
    def of_norm(self) -> int:
        """Tensors kept by an RMSNorm with a weight."""
        return 2 if self.normed else 1

    def product(self, made: float, read: int, ranks: int = 0) -> Named:
        """Return the product of a matrix and a vector.

        ranks: number of ranks with shares of the product; 0 = tp.
        """
        return Named(bytes=self.width * made / (ranks or self.tp), flops=2.0 * made * read)

    def to_stream(self, dim: int, read: int) -> Named:
        """Return the output [dim] of a layer."""
        return self.product(dim, read, self.tokens_cut)
