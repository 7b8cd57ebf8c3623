"""Chinchilla's approaches 1 and 2: the best size for each budget, read from runs, and a power of
the budget through these sizes (Hoffmann et al., 2203.15556, sections 3.1 and 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forge.scaling_laws.bootstrap import Bounds
from forge.statistics.interval import CONFIDENCE

BUDGETS = 400  # of the envelope
SAME = 0.1  # runs of one budget differ by at most this share of its compute
SIZES = 3  # of a parabola


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Best sizes and tokens by budget, and their powers: N ~ C ** a, D ~ C ** b.

    losses: at the best sizes. size_power, token_power: exponent and logarithm of the factor.
    """

    budgets: np.ndarray
    sizes: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray
    size_power: tuple[float, float]
    token_power: tuple[float, float]

    @property
    def a(self) -> float:
        return self.size_power[0]

    @property
    def b(self) -> float:
        return self.token_power[0]

    def best(self, budget: float) -> tuple[float, float]:
        """Parameters and tokens for a budget."""
        size, tokens = (
            float(np.exp(power * np.log(budget) + constant))
            for power, constant in (self.size_power, self.token_power)
        )
        return size, tokens


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The loss of a run over its training: compute and losses [logs]; tokens at each log."""

    parameters: float
    compute: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Parabola:
    """Loss over log N of one budget: runs by index; coefficients, highest power first.

    why: the reason that no best size is read from the parabola; '' for a good one.
    """

    budget: float
    runs: np.ndarray
    coefficients: np.ndarray
    best: float = float("nan")
    loss: float = float("nan")
    why: str = ""


def envelope(curves: Sequence[Curve]) -> Frontier | str:
    """Approach 1: at each of many budgets the run with the lowest loss so far; or the reason that
    there is none.

    Budgets whose best run is of the smallest or the largest size are left out: a smaller or larger
    one may have been better.
    """
    sizes = sorted({curve.parameters for curve in curves})
    if len(sizes) < 4:
        return "it takes curves of four sizes or more"
    curves = [curve for curve in curves if len(curve.compute) > 2]
    if len({curve.parameters for curve in curves}) < 4:
        return "its runs have logged the loss fewer than three times"
    low, high = min(c.compute[0] for c in curves), max(c.compute[-1] for c in curves)
    budgets = np.geomspace(low, high, BUDGETS)
    table = np.full((len(curves), BUDGETS), np.inf)
    for row, curve in zip(table, curves, strict=True):
        inside = (budgets >= curve.compute[0]) & (budgets <= curve.compute[-1])
        place = np.log(budgets[inside])
        row[inside] = np.interp(place, np.log(curve.compute), curve.losses)
    best = table.argmin(axis=0)
    chosen = np.array([curves[index].parameters for index in best])
    kept = np.isfinite(table.min(axis=0)) & (chosen > sizes[0]) & (chosen < sizes[-1])
    if len(set(chosen[kept])) < 2:
        return "fewer than two of the inner sizes are the best at any budget"
    tokens = [
        np.interp(np.log(budget), np.log(curves[i].compute), curves[i].tokens)
        for i, budget in zip(best[kept], budgets[kept], strict=True)
    ]
    return _frontier(budgets[kept], chosen[kept], np.array(tokens), table.min(axis=0)[kept])


def budgets_of(compute: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Runs of equal compute and three sizes or more, by index; the lowest compute first."""
    order = np.argsort(compute, kind="stable")
    cuts = np.flatnonzero(np.diff(np.log(compute[order])) > SAME) + 1
    groups = np.split(order, cuts)
    return [group for group in groups if len(set(sizes[group])) >= SIZES]


def parabolas(compute: np.ndarray, sizes: np.ndarray, losses: np.ndarray) -> list[Parabola]:
    """The parabola of each budget."""
    return [_parabola(compute, sizes, losses, group) for group in budgets_of(compute, sizes)]


def isoflop(
    compute: np.ndarray, sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray
) -> Frontier | str:
    """Approach 2: the lowest point of a parabola through the runs of each budget; or the reason
    that there are too few.
    """
    fitted = parabolas(compute, sizes, losses)
    good = [parabola for parabola in fitted if not parabola.why]
    if len(fitted) < 2:
        return "it takes two budgets or more, each with runs of three sizes"
    if len(good) < 2:
        return "; ".join(f"at {p.budget:.3g} FLOPs {p.why}" for p in fitted if p.why)
    best_tokens = []
    for parabola in good:
        group = parabola.runs[np.argsort(sizes[parabola.runs], kind="stable")]
        line = np.interp(np.log(parabola.best), np.log(sizes[group]), np.log(tokens[group]))
        best_tokens.append(float(np.exp(line)))
    budgets, best, least = np.array([(p.budget, p.best, p.loss) for p in good]).T
    return _frontier(budgets, best, np.array(best_tokens), least)


def isoflop_interval(
    compute: np.ndarray,
    sizes: np.ndarray,
    tokens: np.ndarray,
    losses: np.ndarray,
    *,
    repeats: int,
    seed: int = 0,
) -> Bounds | None:
    """The percentile interval of approach 2's exponent a, over draws of the runs' residuals."""
    frontier = isoflop(compute, sizes, tokens, losses)
    if isinstance(frontier, str):
        return None
    random, values = np.random.default_rng(seed), []
    fitted, noise = losses.copy(), []
    for parabola in parabolas(compute, sizes, losses):
        group = parabola.runs
        fitted[group] = np.polyval(parabola.coefficients, np.log(sizes[group]))
        freedom = len(group) - SIZES
        if freedom > 0:
            noise.append((losses - fitted)[group] * np.sqrt(len(group) / freedom))
    if not noise:
        return Bounds(value=frontier.a)
    pool = np.concatenate(noise)
    for _ in range(repeats):
        draw = isoflop(compute, sizes, tokens, fitted + random.choice(pool, len(losses)))
        if not isinstance(draw, str):
            values.append(draw.a)
    if len(values) < 0.8 * repeats:
        return Bounds(value=frontier.a)
    low, high = np.quantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Bounds(value=frontier.a, low=float(low), high=float(high))


def _parabola(
    compute: np.ndarray, sizes: np.ndarray, losses: np.ndarray, group: np.ndarray
) -> Parabola:
    x = np.log(sizes[group])
    middle = x.mean()
    square, slope, constant = np.polyfit(x - middle, losses[group], 2)
    # Around 0 in place of the middle, as np.polyval takes log N.
    around = np.array(
        [square, slope - 2 * square * middle, constant - slope * middle + square * middle**2]
    )
    budget = float(np.exp(np.log(compute[group]).mean()))
    if square <= 0:
        why = "the losses have no lowest point between the sizes"
        return Parabola(budget=budget, runs=group, coefficients=around, why=why)
    place = middle - slope / (2 * square)
    if not x.min() <= place <= x.max():
        side = "smallest" if place < x.min() else "largest"
        why = f"the lowest loss lies beyond the {side} size"
        return Parabola(budget=budget, runs=group, coefficients=around, why=why)
    loss = constant - slope**2 / (4 * square)
    return Parabola(
        budget=budget, runs=group, coefficients=around, best=float(np.exp(place)), loss=float(loss)
    )


def _frontier(
    budgets: np.ndarray, sizes: np.ndarray, tokens: np.ndarray, losses: np.ndarray
) -> Frontier:
    powers = []
    for values in (sizes, tokens):
        power, constant = np.polyfit(np.log(budgets), np.log(values), 1)
        powers.append((float(power), float(constant)))
    return Frontier(
        budgets=budgets,
        sizes=sizes,
        tokens=tokens,
        losses=losses,
        size_power=powers[0],
        token_power=powers[1],
    )
