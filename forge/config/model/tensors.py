"""The tensors of a model, as rows of one table.

The table is the source for counts of parameters, FLOPs, the memory of weights and the scaling of
initial values. A test compares the table with the built module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

EMBEDDING, POSITION, HEAD = "embedding", "position", "head"
MATRIX, EXPERT, ROUTER = "matrix", "expert", "router"
NORM, BIAS = "norm", "bias"
VALUE_EMBEDDING, GATE = "value_embedding", "gate"
RESIDUAL_SCALAR, X0_SCALAR = "residual_scalar", "x0_scalar"


class LogUniform(NamedTuple):
    """Numbers with logarithms drawn evenly between two bounds."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One parameter of a model.

    name: as in the built module, or in the table's part of the module. role: one of the constants
    above. part: heading in counts of parameters. tp: the dimension cut by tensor parallelism; None
    = every rank has the whole tensor. pieces: number of equal pieces of the tp dimension, such as
    heads; where tp does not divide pieces, every rank has the whole tensor. met: of a stack of
    experts, (experts of a token, number of experts). of_experts: rows belong to experts and are
    shared among ep ranks. residual: the product is added to the residual stream. initial: the first
    value of a vector, or the distribution of its values. std: of the first values of a matrix; None
    = by model.init_std. once: added by a single rank to the sum over tp ranks. new: the rows
    [first, end) of a token table without pretrained values; see `takes`.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    part: str
    tp: int | None = None
    pieces: int = 0
    met: tuple[int, int] = (1, 1)
    of_experts: bool = False
    residual: bool = False
    initial: float | LogUniform = 0.0
    std: float | None = None
    once: bool = False
    new: tuple[int, int] = (0, 0)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def active(self) -> int:
        """Values used by one token."""
        chosen, available = self.met
        return self.size * min(chosen, available) // available

    @property
    def multiplied(self) -> int:
        """Weights multiplied with one token: none of a table, a norm or a bias."""
        return self.active if self.role in (MATRIX, EXPERT, ROUTER, HEAD) else 0

    def cut(self, tp: int) -> int | None:
        """Return the dimension split over `tp` ranks; None = every rank has the whole tensor."""
        return None if self.pieces and self.pieces % tp else self.tp

    def on_rank(self, tp: int, ep: int = 1) -> tuple[int, ...]:
        """Return the largest shape of a rank's part, before FSDP shards the part."""
        shape, cut = list(self.shape), self.cut(tp)
        if self.of_experts:
            shape[0] //= ep
        if cut is not None:
            shape[cut] = -(-shape[cut] // tp)
        return tuple(shape)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a stored token table fits this table.

        New rows, and rows missing in the file, begin as the mean of the rows before them.
        """
        first, end = self.new
        if not end or len(shape) != len(self.shape) or shape[1:] != self.shape[1:]:
            return False
        return first <= shape[0] <= self.shape[0]


def with_new_rows(
    tensors: Iterable[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the stored shapes by name, with new rows added to the tables of tokens."""
    tables = {spec.name: spec for spec in tensors}
    return {
        name: tables[name].shape if name in tables and tables[name].takes(shape) else shape
        for name, shape in shapes.items()
    }


def within(prefix: str, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
    """Return the tensors with names below `prefix`."""
    return (replace(spec, name=f"{prefix}.{spec.name}") for spec in tensors)


def linear(
    name: str,
    out: int,
    into: int,
    *,
    part: str,
    bias: bool = False,
    tp: int | None = None,
    pieces: int = 0,
    residual: bool = False,
) -> Iterator[TensorSpec]:
    """Yield the weight [out, into] of a linear layer, and the bias.

    tp: 0 cuts the outputs, 1 the inputs.
    """
    yield TensorSpec(
        name=f"{name}.weight",
        shape=(out, into),
        role=MATRIX,
        part=part,
        tp=tp,
        pieces=pieces,
        residual=residual,
    )
    if bias:
        vector = {"tp": 0 if tp == 0 else None, "pieces": pieces, "once": tp == 1}
        yield TensorSpec(name=f"{name}.bias", shape=(out,), role=BIAS, part=part, **vector)


def norm(
    name: str,
    width: int,
    *,
    part: str = "norms",
    bias: bool = False,
    unit_offset: bool = False,
    tp: int | None = None,
    pieces: int = 0,
) -> Iterator[TensorSpec]:
    """Yield the weight of a norm, and the bias of a LayerNorm with bias.

    unit_offset: the norm scales by 1 + weight. tp: 0 cuts the weight.
    """
    cut: dict[str, Any] = {"shape": (width,), "part": part, "tp": tp, "pieces": pieces}
    yield TensorSpec(name=f"{name}.weight", role=NORM, initial=0.0 if unit_offset else 1.0, **cut)
    if bias:
        yield TensorSpec(name=f"{name}.bias", role=BIAS, **cut)


def misfits(
    ours: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Return the misfits between stored tensors and a model's tensors, by name.

    ours, theirs: the model's and the stored shapes by name.
    """
    faults = {}
    for name, shape in ours.items():
        if name not in theirs:
            faults[name] = f"{name} is missing there"
        elif theirs[name] != shape:
            faults[name] = f"{name} is {theirs[name]} there and {shape} here"
    return faults | {name: f"{name} is missing here" for name in theirs if name not in ours}
