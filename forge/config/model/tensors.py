"""The tensors that a model is made of, as rows of one table.

Counts of parameters, FLOPs, the memory of weights and which initial values are scaled are read from
it; a test compares it with the module that is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

EMBEDDING, POSITION, HEAD = "embedding", "position", "head"
MATRIX, EXPERT, ROUTER = "matrix", "expert", "router"
NORM, BIAS = "norm", "bias"


class LogUniform(NamedTuple):
    """Logarithms of numbers that are drawn evenly between two."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One parameter.

    name: as in the built module, or in the part of it that the table is of. role: one of the above.
    part: what counts of parameters list it under. tp: the dimension that tensor parallelism cuts;
    None = every rank has all of it. pieces: into how many equal pieces that dimension can be cut,
    as into heads; where tp does not divide them, every rank has all of it. met: of a stack of
    experts, (number that a token goes to, number of experts). of_experts: its rows are those of
    experts, which ep ranks share. residual: its product is added to the residual stream. initial:
    the first value of a vector, or how they are drawn. std: of the first values of a matrix; None =
    as model.init_std has it. once: added to what tp ranks sum up, so that one of them adds it.
    new: the rows [first, end) of a table of tokens that pretrained weights do not know; see
    `takes`.
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
        """Values that one token meets."""
        chosen, of = self.met
        return self.size * min(chosen, of) // of

    @property
    def multiplied(self) -> int:
        """Weights that one token is multiplied with: none of a table, a norm or a bias."""
        return self.active if self.role in (MATRIX, EXPERT, ROUTER, HEAD) else 0

    def cut(self, tp: int) -> int | None:
        """The dimension of which each of `tp` ranks has a part; None = they have all of it."""
        return None if self.pieces and self.pieces % tp else self.tp

    def on_rank(self, tp: int, ep: int = 1) -> tuple[int, ...]:
        """The shape of what a rank has that has most, before FSDP shards it."""
        shape, cut = list(self.shape), self.cut(tp)
        if self.of_experts:
            shape[0] //= ep
        if cut is not None:
            shape[cut] = -(-shape[cut] // tp)
        return tuple(shape)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a stored table of tokens becomes this one where its new rows, and those that are
        not stored, begin as the mean of the rows before them.
        """
        first, end = self.new
        if not end or len(shape) != len(self.shape) or shape[1:] != self.shape[1:]:
            return False
        return first <= shape[0] <= self.shape[0]


def with_new_rows(
    tensors: Iterable[TensorSpec], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Stored shapes by name, of tables that get new rows with these."""
    tables = {one.name: one for one in tensors}
    return {
        name: tables[name].shape if name in tables and tables[name].takes(shape) else shape
        for name, shape in shapes.items()
    }


def within(prefix: str, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
    """The same with names below `prefix`."""
    return (replace(one, name=f"{prefix}.{one.name}") for one in tensors)


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
    """The weight [out, into] of a linear layer, and its bias; tp: 0 cuts its outputs, 1 its
    inputs.
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
    """The weight of a norm, and the bias of a LayerNorm that has one. unit_offset: it scales by
    1 + weight. tp: 0 cuts it.
    """
    cut: dict[str, Any] = {"shape": (width,), "part": part, "tp": tp, "pieces": pieces}
    yield TensorSpec(name=f"{name}.weight", role=NORM, initial=0.0 if unit_offset else 1.0, **cut)
    if bias:
        yield TensorSpec(name=f"{name}.bias", role=BIAS, **cut)


def misfits(
    ours: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Why stored tensors do not fit those of a model, for each name that does not. Both are shapes
    by name.
    """
    faults = {}
    for name, shape in ours.items():
        if name not in theirs:
            faults[name] = f"{name} is missing there"
        elif theirs[name] != shape:
            faults[name] = f"{name} is {theirs[name]} there and {shape} here"
    return faults | {name: f"{name} is missing here" for name in theirs if name not in ours}
