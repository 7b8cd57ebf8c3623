"""What a layer keeps of one token until its backward pass, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

FP32, INT64 = 4, 8


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes of a token on one rank, without the input of the layer.

    all: without recomputation. products: results of matrices and attention, which selective
    recomputation keeps.
    """

    all: float
    products: float


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """How numbers are held on a rank.

    width: bytes of one in matrix products. seq_len: tokens of a sequence. tp: ranks that share
    heads and widths. cuda: whether norms are fused. masked: whether attention is given a mask.
    """

    width: int
    seq_len: int
    tp: int
    cuda: bool
    masked: bool = False

    def rms_norm(self, dim: int, width: int) -> int:
        """The input and the root, or, on a CPU, where no kernel fuses it, an fp32 copy and the
        ratio. width: bytes of a number of the input.
        """
        return FP32 + (width * dim if self.cuda else 2 * FP32 * dim)

    def norm(self, kind: str, dim: int, width: int) -> int:
        """The same of either norm_type; LayerNorm keeps the input, mean and deviation."""
        return width * dim + 2 * FP32 if kind == "layernorm" else self.rms_norm(dim, width)
