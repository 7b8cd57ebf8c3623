"""Comparison of the two sides of a parity check: the distance, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forge.config.adapters.adapter import A
from forge.config.numbers import aligned
from forge.config.root import Config
from forge.parallel.gather import Tensors
from forge.parity.side import Record


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The largest relative differences of losses, gradients and weights.

    gradient: of each parameter, ||a - b|| / ||a||. weights: of each parameter after the last step.
    """

    loss: float
    gradient: float
    weights: float

    def __str__(self) -> str:
        gradients = f"gradients {self.gradient:.0e}, weights at the end {self.weights:.0e}"
        return f"losses {self.loss:.0e}, {gradients}"


BOUNDS = {
    torch.float64: Bounds(loss=1e-12, gradient=1e-10, weights=1e-9),
    torch.float32: Bounds(loss=1e-6, gradient=1e-5, weights=2e-5),
}
"""By dtype. A weight that begins at 0 is a sum of updates, each with the error of its gradient."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A step of both sides; worst, gradient: the gradient with the largest difference, and how
    much.
    """

    losses: tuple[float, float]
    grad_norms: tuple[float, float]
    worst: str
    gradient: float

    @property
    def loss(self) -> float:
        return _relative(*self.losses)

    @property
    def grad_norm(self) -> float:
        return _relative(*self.grad_norms)

    def cells(self) -> list[str]:
        return [
            *(f"{value:.12g}" for value in self.losses),
            f"{self.loss:.1e}",
            *(f"{value:.12g}" for value in self.grad_norms),
            f"{self.grad_norm:.1e}",
            self.worst,
            f"{self.gradient:.1e}",
        ]


OF_EACH_SIDE = "loss a|loss b|difference|grad norm a|grad norm b|difference"
COLUMNS = ["step", *OF_EACH_SIDE.split("|"), "worst gradient", "difference"]


@dataclass(kw_only=True)
class Verdict:
    """The comparison; worst, weights: the parameter with the largest difference at the end, and how
    much.
    """

    rows: list[Row] = field(default_factory=list)
    parameters: int = 0
    numbers: int = 0
    worst: str = ""
    weights: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not self.faults

    def largest(self) -> tuple[float, float, float]:
        """The largest difference of a loss, of a gradient or gradient norm, and of weights."""
        losses = [row.loss for row in self.rows]
        gradients = [max(row.gradient, row.grad_norm) for row in self.rows]
        return max(losses, default=math.nan), max(gradients, default=math.nan), self.weights


def compare_records(
    a: Record, b: Record, bounds: Bounds, *, may_vanish: Sequence[str] = ()
) -> Verdict:
    """Compare b with a. A missing, zero or not finite gradient on either side is a fault.

    may_vanish: ends of names of parameters with a mathematically zero gradient; on both sides the
    gradient may then be no more than rounding.
    """
    values = [value for value in a.before.values() if value is not None]
    verdict = Verdict(parameters=len(a.before), numbers=sum(value.numel() for value in values))
    shared = [name for name in a.before if name in b.before]
    verdict.faults += _before_steps(a, b, shared)
    if len(a.losses) != len(b.losses):
        verdict.faults.append(f"a made {len(a.losses)} steps and b {len(b.losses)}")
    vanishing = {name for name in shared if name.endswith(tuple(may_vanish))}
    shared = [name for name in shared if name not in a.frozen]
    for step in range(min(len(a.gradients), len(b.gradients))):
        none_yet = _before_zeros(a.before) if step == 0 else set()
        faults = _compare_step(verdict, step, a, b, shared, vanishing | none_yet, bounds)
        verdict.faults += [f"step {step + 1}: {fault}" for fault in faults]
    if not verdict.rows:
        verdict.faults.append("no step was made")
    _compare_ends(verdict, a, b, shared, vanishing, bounds)
    return verdict


def _before_zeros(before: Mapping[str, Tensor | None]) -> set[str]:
    """Names of parameters without a gradient in the first step: what they give is multiplied by a
    parameter that begins at 0, as A by B of an adapter, or a layer by its last matrix.
    """
    names = {name for name in before if name.endswith(A)}
    for name, values in before.items():
        if values is None or values.any() or not (values.ndim > 1 or name.endswith(".scale")):
            continue
        layer = name.rpartition(".")[0]
        layer = layer.rpartition(".")[0] if values.ndim > 1 else layer
        names |= {other for other in before if other != name and other.startswith(f"{layer}.")}
    return names


def _before_steps(a: Record, b: Record, shared: Sequence[str]) -> Iterator[str]:
    """Yield the faults of the initial weights, shared parameters included, and of names."""
    for side, record in (("a", a), ("b", b)):
        for description in record.replicas:
            yield f"ranks of {side} have different copies of {description}"
    yield from (*_names(a.before, b.before), *_names(a.state, b.state))
    for name in shared:
        if not _same_bits(a.before[name], b.before[name]):
            yield f"{name} differs at step 0"


def _compare_ends(
    verdict: Verdict,
    a: Record,
    b: Record,
    shared: Sequence[str],
    vanishing: Collection[str],
    bounds: Bounds,
) -> None:
    """Add what weights and state after the last step say. shared: parameters that are trained."""
    ends = {}
    for name in shared:
        a_value, b_value = a.after.get(name), b.after.get(name)
        if a_value is None or b_value is None:
            verdict.faults.append(f"{name} is missing after the last step")
        elif name not in vanishing:
            for side, record in (("a", a), ("b", b)):
                if _same_bits(record.before[name], record.after[name]):
                    verdict.faults.append(f"{name} has not moved in {side}")
            ends[name] = _distance(a_value, b_value)
    verdict.worst, verdict.weights = _worst(ends, 0.0)
    for name in [name for name in a.state if name in b.state]:
        a_value, b_value = a.state[name], b.state[name]
        ends[name] = (
            _distance(a_value, b_value) if a_value is not None and b_value is not None else math.inf
        )
    for name, distance in ends.items():
        description = f"{name} differs by {distance:.1e} after the last step"
        verdict.faults += _beyond(description, distance, bounds.weights)


def may_vanish(config: Config) -> tuple[str, ...]:
    """Ends of names of parameters possibly without a gradient.

    A bias of keys adds the same to all scores of a query, invisible to softmax, unless positions
    rotate the keys or a norm scales the keys.
    """
    model = config.decoder
    unseen = model is not None and model.position != "rope" and not model.qk_norm
    return ("wk.bias",) if unseen else ()


def _names(a: Tensors, b: Tensors) -> Iterator[str]:
    yield from (f"{name} is missing in b" for name in a if name not in b)
    yield from (f"{name} is missing in a" for name in b if name not in a)


def _compare_step(
    verdict: Verdict,
    step: int,
    a: Record,
    b: Record,
    shared: list[str],
    vanishing: set[str],
    bounds: Bounds,
) -> Iterator[str]:
    a_gradients, b_gradients = a.gradients[step], b.gradients[step]
    rounding = max(a.grad_norms[step], 1e-300) * 100 * _epsilon(a_gradients)
    distances = {}
    for name in shared:
        a_gradient, b_gradient = a_gradients.get(name), b_gradients.get(name)
        for side, gradient in (("a", a_gradient), ("b", b_gradient)):
            if gradient is None:
                yield f"{name} has no gradient in {side}"
            elif not gradient.isfinite().all():
                yield f"the gradient of {name} is not finite in {side}"
            elif not gradient.any() and name not in vanishing:
                yield f"the gradient of {name} is zero in {side}"
        if a_gradient is not None and b_gradient is not None:
            vanishes = name in vanishing and max(a_gradient.norm(), b_gradient.norm()) <= rounding
            distance = _distance(a_gradient, b_gradient, a.grad_norms[step])
            distances[name] = 0.0 if vanishes else distance
    worst, gradient = _worst(distances, math.nan)
    row = Row(
        losses=(a.losses[step], b.losses[step]),
        grad_norms=(a.grad_norms[step], b.grad_norms[step]),
        worst=worst,
        gradient=gradient,
    )
    verdict.rows.append(row)
    yield from _beyond(f"the losses differ by {row.loss:.1e}", row.loss, bounds.loss)
    message = f"the gradient norms differ by {row.grad_norm:.1e}"
    yield from _beyond(message, row.grad_norm, bounds.gradient)
    for name, distance in distances.items():
        yield from _beyond(
            f"the gradient of {name} differs by {distance:.1e}", distance, bounds.gradient
        )


def _beyond(what: str, found: float, bound: float) -> Iterator[str]:
    if not found <= bound:  # also of NaN
        yield f"{what}, more than {bound:.0e}"


def _worst(distances: dict[str, float], none: float) -> tuple[str, float]:
    """The largest distance and its name; NaN is worse than all."""
    if not distances:
        return "", none
    return max(
        distances.items(),
        key=lambda item: math.inf if math.isnan(item[1]) else item[1],
    )


def _same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)


def _distance(a: Tensor, b: Tensor, total: float = 0.0) -> float:
    """||a - b|| / ||a||; infinite for different shapes.

    total: norm of all gradients, for one number instead of ||a||: its gradient is a sum over all
    tokens that mostly cancels.
    """
    if a.shape != b.shape:
        return math.inf
    length = max(float(a.double().norm()), total if a.numel() == 1 else 0.0)
    return _ratio(float((a.double() - b.double()).norm()), length)


def _relative(a: float, b: float) -> float:
    return _ratio(abs(a - b), abs(a))


def _ratio(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


def _epsilon(gradients: Tensors) -> float:
    dtypes = [value.dtype for value in gradients.values() if value is not None]
    return torch.finfo(dtypes[0]).eps if dtypes else 0.0


def verdict_table(verdict: Verdict, bounds: Bounds, *, faults: int = 10) -> str:
    """The comparison as text: a line for each step, and the faults."""
    differ = any(fault.endswith("step 0") for fault in verdict.faults)
    sizes = f"{verdict.parameters} parameters, {verdict.numbers:,} numbers"
    rows = [COLUMNS, *([str(i), *row.cells()] for i, row in enumerate(verdict.rows, 1))]
    equal = "different" if differ else "bit-equal"
    lines = [f"weights at step 0: {equal} ({sizes})", "", *aligned(rows)]
    end = f"{verdict.worst} is furthest apart, by {verdict.weights:.1e}"
    lines += ["", f"weights at the end: {end}"]
    if verdict.equal:
        return "\n".join([*lines, f"equal, within the bounds: {bounds}"])
    shown = [f"  {fault}" for fault in verdict.faults[:faults]]
    ending = [f"  and {len(verdict.faults) - faults} more"] if len(verdict.faults) > faults else []
    return "\n".join([*lines, f"NOT equal; the bounds are {bounds}", *shown, *ending])
