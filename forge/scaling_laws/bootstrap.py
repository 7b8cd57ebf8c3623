"""Intervals of a law and of all that follows from it, by a bootstrap over runs.

The residual of a run, divided by sqrt(1 - leverage), is the unit that is drawn with replacement;
the runs keep their sizes and tokens, so that no draw is without the smallest or the largest. Half
of the variance is drawn from a normal distribution, since a few residuals have lighter tails than
their source (the smoothed bootstrap of unchanged variance; Silverman and Young, Biometrika 74,
1987). Each draw is fitted again, and the deviation of a quantity is divided by its standard error
in that draw (bootstrap-t; Efron and Tibshirani, An Introduction to the Bootstrap, 1993, 12.5). The
noise of a run is taken to be equal for all runs, in the unit of the loss. Where fewer than four
runs are left beyond the parameters, draws tell little: the interval is Student's t by
linearisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forge.scaling_laws.projection import Powers, refine
from forge.statistics.interval import CONFIDENCE, TAIL

REPEATS, SEED = 999, 0
STEP = 1e-5
LEAST_FREEDOM = 4  # runs beyond the parameters, for draws
LEAST_SHARE = 0.8  # of draws with a value, for an interval
Quantity = Callable[[Powers], np.ndarray]
"""A number of every data set of a fit: [data sets]."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """An estimate with its 95 % interval; None where the draws do not give one."""

    value: float
    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high


class Bootstrap:
    """Draws of a fit. logs of places are centred as those of the fit."""

    def __init__(self, powers: Powers, repeats: int = REPEATS, seed: int = SEED) -> None:
        if powers.freedom < 1:
            raise ValueError("a bootstrap takes more runs than the law has parameters.")
        self.powers, self.random = powers, np.random.default_rng(seed)
        self.draws: Powers | None = None
        if powers.freedom < LEAST_FREEDOM:
            return
        residuals = -powers.residuals[0]
        noise = residuals / np.sqrt(1 - _leverages(powers))
        noise -= noise.mean()
        shape = (repeats, len(residuals))
        drawn = self.random.choice(noise, shape) + noise.std() * self.random.standard_normal(shape)
        losses = powers.at(powers.logs) + drawn / np.sqrt(2)
        starts = np.repeat(powers.exponents, repeats, axis=0)
        self.draws = refine(powers.logs, losses, starts, powers.centre)

    def interval(self, quantity: Quantity, *, positive: bool = False) -> Bounds:
        """The interval of a quantity. positive: it is worked out for the logarithm."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value, error = _with_error(self.powers, quantity, positive)
            if self.draws is None:
                bounds = self._student(float(value[0]), float(error[0]))
            else:
                values, errors = _with_error(self.draws, quantity, positive)
                deviations = (values - value) / errors
                bounds = _bounds(float(value[0]), float(error[0]), deviations)
        if not positive:
            return bounds
        ends = [None if end is None else _exp(end) for end in (bounds.low, bounds.high)]
        return Bounds(value=float(np.exp(bounds.value)), low=ends[0], high=ends[1])

    def prediction(self, place: np.ndarray) -> Bounds:
        """The interval of the loss of a new run, with normal noise, at a place [terms, 1]."""

        def loss(powers: Powers) -> np.ndarray:
            return powers.at(place)[:, 0]

        value, error = _with_error(self.powers, loss, False)
        whole = float(np.sqrt(error[0] ** 2 + self.powers.deviation[0] ** 2))
        if self.draws is None:
            return self._student(float(value[0]), whole)
        values, errors = _with_error(self.draws, loss, False)
        noise = self.powers.deviation[0] * self.random.standard_normal(len(values))
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.sqrt(errors**2 + self.draws.deviation**2)
            deviations = (values - value - noise) / spread
        return _bounds(float(value[0]), whole, deviations)

    def _student(self, value: float, error: float) -> Bounds:
        from scipy.special import stdtrit  # imported late: a quarter of a second

        half = float(stdtrit(self.powers.freedom, TAIL)) * error
        if not np.isfinite(half):
            return Bounds(value=value)
        return Bounds(value=value, low=value - half, high=value + half)


def _with_error(
    powers: Powers, quantity: Quantity, positive: bool
) -> tuple[np.ndarray, np.ndarray]:
    """A quantity, or its logarithm, and its standard error by linearisation."""

    def number(some: Powers) -> np.ndarray:
        return np.log(quantity(some)) if positive else quantity(some)

    theta, gradients = powers.theta, []
    for index in range(theta.shape[1]):
        up, down = theta.copy(), theta.copy()
        up[:, index] += STEP
        down[:, index] -= STEP
        gradients.append((number(_at(powers, up)) - number(_at(powers, down))) / (2 * STEP))
    gradient = np.stack(gradients, axis=1)
    variance = np.einsum("bi,bij,bj->b", gradient, powers.covariance, gradient)
    return number(powers), np.sqrt(np.maximum(variance, 0.0))


def _at(powers: Powers, theta: np.ndarray) -> Powers:
    terms = len(powers.logs)
    scaled = np.concatenate([theta[:, :1], np.exp(theta[:, 1 : 1 + terms])], axis=1)
    return Powers(
        logs=powers.logs,
        centre=powers.centre,
        exponents=theta[:, 1 + terms :],
        scaled=scaled,
        residuals=powers.residuals,
    )


def _bounds(value: float, error: float, deviations: np.ndarray) -> Bounds:
    valid = deviations[np.isfinite(deviations)]
    if not np.isfinite(error) or len(valid) < LEAST_SHARE * len(deviations):
        return Bounds(value=value)
    ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = np.quantile(valid, ends, method="weibull")  # places of the n + 1 gaps
    return Bounds(value=value, low=value - float(high) * error, high=value - float(low) * error)


def _leverages(powers: Powers) -> np.ndarray:
    """The share of each run in its own fitted loss [runs]; below 1."""
    basis = powers.jacobian()[0].T
    size = np.linalg.norm(basis, axis=0)
    orthogonal, _ = np.linalg.qr(basis / np.where(size > 0, size, 1.0))
    return np.minimum((orthogonal**2).sum(axis=1), 0.99)


def _exp(value: float) -> float:
    return float(np.exp(min(value, 700.0)))
