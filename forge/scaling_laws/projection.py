"""Variable projection: a sum of powers, loss = E + sum of A_j / x_j ** p_j, by least squares.

For given exponents the loss is linear in E and the A_j, none of them negative, and that problem is
solved exactly; only the exponents are searched, on a grid and then by Gauss-Newton steps on the
projected residual (Golub and Pereyra, SIAM J. Numer. Anal. 10, 1973; Kaufman's Jacobian, BIT 15,
1975). Many data sets over the same runs are fitted at once, as a bootstrap needs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

GRID = np.geomspace(0.02, 4.0, 40)
LOWEST, HIGHEST = 1e-3, 12.0  # bounds of an exponent
STARTS, STEPS, RIDGE = 6, 200, 1e-14
Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Powers:
    """Sums of powers fitted to [data sets, runs].

    logs: log of each variable over its geometric mean [terms, runs]. centre: logs of the geometric
    means [terms]. exponents: [data sets, terms]. scaled: E and the coefficients of the centred
    variables [data sets, 1 + terms]. residuals: fitted minus measured [data sets, runs].
    """

    logs: Array
    centre: Array
    exponents: Array
    scaled: Array
    residuals: Array

    @property
    def parameters(self) -> int:
        return 1 + 2 * len(self.logs)

    @property
    def freedom(self) -> int:
        """Runs beyond the parameters."""
        return self.logs.shape[1] - self.parameters

    @cached_property
    def coefficients(self) -> Array:
        """E, then A of each term, of the variables themselves [data sets, 1 + terms]."""
        factors = np.exp(self.exponents * self.centre)
        return np.concatenate([self.scaled[:, :1], self.scaled[:, 1:] * factors], axis=1)

    @cached_property
    def deviation(self) -> Array:
        """Standard deviation of a run around the law [data sets]; 0 without freedom."""
        squares = (self.residuals**2).sum(axis=1)
        return np.sqrt(squares / self.freedom) if self.freedom > 0 else np.zeros(len(squares))

    def at(self, logs: Array) -> Array:
        """The loss at centred logs [terms, places]: [data sets, places]."""
        return np.einsum("bk,bkn->bn", self.scaled, columns(logs, self.exponents))

    def jacobian(self, logs: Array | None = None) -> Array:
        """Derivatives of the loss by `theta` [data sets, parameters, places]."""
        logs = self.logs if logs is None else logs
        basis = columns(logs, self.exponents) * self.scaled[:, :, None]
        basis[:, 0] = 1.0  # by E itself; by the logarithm of each coefficient
        return np.concatenate([basis, -basis[:, 1:] * logs], axis=1)

    @cached_property
    def theta(self) -> Array:
        """E, log of each scaled coefficient, and the exponents [data sets, parameters]."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.scaled[:, 1:])
        return np.concatenate([self.scaled[:, :1], logs, self.exponents], axis=1)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of `theta` by linearisation; NaN where a term has vanished."""
        jacobian = self.jacobian()
        gram = jacobian @ jacobian.swapaxes(1, 2)
        size = np.sqrt(np.einsum("bkk->bk", gram))
        regular = (size > 0).all(axis=1)
        size = np.where(size > 0, size, 1.0)
        scaled = gram / size[:, :, None] / size[:, None, :]
        inverse = np.full_like(gram, np.nan)
        regular &= np.linalg.cond(scaled) < 1e14
        inverse[regular] = np.linalg.inv(scaled[regular])
        variance = self.deviation[:, None, None] ** 2
        return variance * inverse / size[:, :, None] / size[:, None, :]


def fit(variables: Array, losses: Array) -> Powers:
    """The law of one data set. variables: positive [terms, runs]. losses: [runs]."""
    logs = np.log(np.asarray(variables, dtype=float))
    centre = logs.mean(axis=1)
    logs = logs - centre[:, None]
    losses = np.asarray(losses, dtype=float)
    starts = _best_of_grid(logs, losses)
    found = refine(logs, np.repeat(losses[None], len(starts), axis=0), starts, centre)
    best = int((found.residuals**2).sum(axis=1).argmin())
    return select(found, best)


def select(powers: Powers, index: int) -> Powers:
    """The fit of a single data set."""
    part = slice(index, index + 1)
    return Powers(
        logs=powers.logs,
        centre=powers.centre,
        exponents=powers.exponents[part],
        scaled=powers.scaled[part],
        residuals=powers.residuals[part],
    )


def refine(logs: Array, losses: Array, exponents: Array, centre: Array) -> Powers:
    """Gauss-Newton steps with damping from `exponents` [data sets, terms] for each of `losses`
    [data sets, runs], until no step lowers the squares.
    """
    exponents = exponents.copy()
    scaled, residuals, steps = _projected(logs, losses, exponents)
    squares = (residuals**2).sum(axis=1)
    damping, busy = np.full(len(losses), 1e-3), np.arange(len(losses))
    for _ in range(STEPS):
        hessian, gradient = steps
        size = np.einsum("bkk->bk", hessian) * damping[busy, None] + 1e-300
        lowered = hessian + size[:, :, None] * np.eye(len(logs))
        change = np.linalg.solve(lowered, gradient[:, :, None])[:, :, 0]
        trial = np.clip(exponents[busy] - np.clip(change, -0.5, 0.5), LOWEST, HIGHEST)
        new_scaled, new_residuals, new_steps = _projected(logs, losses[busy], trial)
        new_squares = (new_residuals**2).sum(axis=1)
        moved = np.abs(trial - exponents[busy]).max(axis=1)
        better = new_squares < squares[busy]
        rows = busy[better]
        exponents[rows], scaled[rows] = trial[better], new_scaled[better]
        residuals[rows], squares[rows] = new_residuals[better], new_squares[better]
        hessian[better], gradient[better] = new_steps[0][better], new_steps[1][better]
        damping[busy] = np.where(better, damping[busy] / 10, damping[busy] * 10)
        going_on = (moved > 1e-13) & (damping[busy] < 1e12)
        busy, steps = busy[going_on], (hessian[going_on], gradient[going_on])
        if not len(busy):
            break
    return Powers(logs=logs, centre=centre, exponents=exponents, scaled=scaled, residuals=residuals)


def columns(logs: Array, exponents: Array) -> Array:
    """1 and the powers of centred variables [data sets, 1 + terms, places]."""
    powers = np.exp(-exponents[:, :, None] * logs)
    return np.concatenate([np.ones_like(powers[:, :1]), powers], axis=1)


def _best_of_grid(logs: Array, losses: Array) -> Array:
    """The lowest local minima of the squares on the grid of exponents."""
    terms = len(logs)
    grid = np.stack(np.meshgrid(*[GRID] * terms, indexing="ij"), axis=-1)
    flat = grid.reshape(-1, terms)
    _, residuals = _solved(columns(logs, flat), np.repeat(losses[None], len(flat), axis=0))
    squares = np.pad((residuals**2).sum(axis=1).reshape(grid.shape[:-1]), 1, constant_values=np.inf)
    inner = tuple(slice(1, -1) for _ in range(terms))
    lowest = np.ones(grid.shape[:-1], dtype=bool)
    for shift in itertools.product((-1, 0, 1), repeat=terms):
        lowest &= squares[inner] <= np.roll(squares, shift, axis=tuple(range(terms)))[inner]
    places = np.flatnonzero(lowest.reshape(-1))
    heights = squares[inner].reshape(-1)[places]
    return flat[places[np.argsort(heights, kind="stable")[:STARTS]]]


def _solved(basis: Array, losses: Array) -> tuple[Array, Array]:
    """Non-negative coefficients by least squares, and the residuals; basis [sets, terms, runs]."""
    gram, right = basis @ basis.swapaxes(1, 2), np.einsum("bkn,bn->bk", basis, losses)
    scaled = _corrected(basis, gram, right, losses)
    residuals = np.einsum("bk,bkn->bn", scaled, basis) - losses
    rows = np.flatnonzero((scaled < 0).any(axis=1))
    if not len(rows):
        return scaled, residuals
    # The optimum is the least-squares solution on its own support: try every support.
    squares = np.full(len(rows), np.inf)
    part, gram, right, measured = basis[rows], gram[rows], right[rows], losses[rows]
    for support in itertools.product((0.0, 1.0), repeat=basis.shape[1]):
        mask = np.array(support)
        masked = gram * mask[:, None] * mask + np.diag(1 - mask)
        trial = _corrected(part * mask[:, None], masked, right * mask, measured)
        rest = np.einsum("bk,bkn->bn", trial, part) - measured
        heights = np.where((trial >= 0).all(axis=1), (rest**2).sum(axis=1), np.inf)
        better = heights < squares
        squares[better] = heights[better]
        scaled[rows[better]], residuals[rows[better]] = trial[better], rest[better]
    return scaled, residuals


def _corrected(basis: Array, gram: Array, right: Array, losses: Array) -> Array:
    """Solve the normal equations, with a step of refinement by the residuals."""
    gram = gram * (1 + RIDGE * np.eye(gram.shape[1]))  # equal columns are no error
    scaled = np.linalg.solve(gram, right[:, :, None])[:, :, 0]
    rest = losses - np.einsum("bk,bkn->bn", scaled, basis)
    right = np.einsum("bkn,bn->bk", basis, rest)
    return scaled + np.linalg.solve(gram, right[:, :, None])[:, :, 0]


def _projected(logs: Array, losses: Array, exponents: Array) -> tuple[Array, Array, tuple]:
    """Coefficients, residuals, and Hessian and gradient of half the squares by the exponents."""
    basis = columns(logs, exponents)
    scaled, residuals = _solved(basis, losses)
    held = basis * (scaled > 0)[:, :, None]
    gram = held @ held.swapaxes(1, 2)
    gram += (scaled <= 0)[:, :, None] * np.eye(gram.shape[1])
    slopes = -scaled[:, 1:, None] * basis[:, 1:] * logs
    gram *= 1 + RIDGE * np.eye(gram.shape[1])
    parts = np.linalg.solve(gram, held @ slopes.swapaxes(1, 2))
    slopes = slopes - parts.swapaxes(1, 2) @ held
    gradient = (slopes @ residuals[:, :, None])[:, :, 0]
    return scaled, residuals, (slopes @ slopes.swapaxes(1, 2), gradient)
