"""Chinchilla's approach 3: Huber's loss of log residuals, by L-BFGS from a grid of starts (Hoffmann
et al., 2203.15556, section 3.3).
"""

from __future__ import annotations

import itertools

import numpy as np

from forge.scaling_laws.bootstrap import Bounds, Quantity
from forge.scaling_laws.projection import Powers
from forge.statistics.interval import CONFIDENCE

DELTA = 1e-3
EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0)
SHARES = (-3.0, -2.0, -1.0, 0.0, 1.0)
FLOORS = (-1.0, -0.5, 0.0, 0.5, 1.0)
STARTS, STEPS, MEMORY = 100, 100, 8  # of L-BFGS: the best of the grid; and pairs that it keeps
POLISHED, POLISH = 5, 100  # fits after L-BFGS, and their last steps


def fit_huber(variables: np.ndarray, losses: np.ndarray) -> Powers:
    """The law with the lowest sum of Huber(log fitted - log measured), delta 1e-3.

    variables: [2, runs]. The grid of starts is over log E, the logarithms of both terms in the
    middle of the runs, and both exponents; L-BFGS resumes from the best 100 of 3,125, and the best
    of these are finished by Gauss-Newton steps, since L-BFGS ends a little above the minimum.
    """
    logs = np.log(np.asarray(variables, float))
    centre = logs.mean(axis=1)
    logs, target = logs - centre[:, None], np.log(np.asarray(losses, float))
    start = float(target.mean())
    grid = np.array(
        [
            (e + start, a + start, b + start, p, q)
            for e, a, b, p, q in itertools.product(FLOORS, SHARES, SHARES, EXPONENTS, EXPONENTS)
        ]
    )
    heights, _, _ = _value(grid, logs, target)
    found = _minimised(grid[np.argsort(heights, kind="stable")[:STARTS]], logs, target)
    tried = _polished(found[:POLISHED], logs, np.repeat(target[None], POLISHED, axis=0))
    best = int(_value(tried, logs, target)[0].argmin())
    return _powers(tried[best : best + 1], logs, centre, target)


def huber_interval(
    powers: Powers, losses: np.ndarray, quantity: Quantity, *, repeats: int, seed: int = 0
) -> Bounds:
    """The percentile interval of a quantity, over draws of the runs' log residuals."""
    theta = np.concatenate([np.log(powers.scaled), powers.exponents], axis=1)
    fitted = _log_loss(theta, powers.logs)[0][0]
    noise = np.log(losses) - fitted
    value = float(quantity(powers)[0])
    if powers.freedom < 1:
        return Bounds(value=value)
    noise = (noise - noise.mean()) * np.sqrt(len(noise) / powers.freedom)
    random = np.random.default_rng(seed)
    targets = fitted + random.choice(noise, (repeats, len(noise)))
    draws = _polished(np.repeat(theta, repeats, axis=0), powers.logs, targets)
    values = quantity(_powers(draws, powers.logs, powers.centre, targets))
    low, high = np.quantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Bounds(value=value, low=float(low), high=float(high))


def _powers(theta: np.ndarray, logs: np.ndarray, centre: np.ndarray, target: np.ndarray) -> Powers:
    residuals = np.exp(_log_loss(theta, logs)[0]) - np.exp(target)
    scaled, exponents = np.exp(theta[:, :3]), theta[:, 3:]
    return Powers(logs=logs, centre=centre, exponents=exponents, scaled=scaled, residuals=residuals)


def _log_loss(theta: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(E + A / x + B / y) [fits, runs], and its derivatives [fits, parameters, runs]."""
    terms = theta[:, 1:3, None] - theta[:, 3:, None] * logs
    floor = np.broadcast_to(theta[:, :1, None], (len(theta), 1, logs.shape[1]))
    parts = np.concatenate([floor, terms], axis=1)
    top = parts.max(axis=1)
    weights = np.exp(parts - top[:, None])
    total = weights.sum(axis=1)
    shares = weights / total[:, None]
    return top + np.log(total), np.concatenate([shares, -shares[:, 1:] * logs], axis=1)


def _value(
    theta: np.ndarray, logs: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Huber's loss in units of delta squared [fits], its gradient [fits, parameters], and slopes
    and weights of the residuals.
    """
    fitted, slopes = _log_loss(theta, logs)
    residuals = (fitted - target) / DELTA
    size = np.abs(residuals)
    huber = np.where(size <= 1, residuals**2 / 2, size - 0.5)
    weights = 1 / np.maximum(size, 1)
    gradient = np.einsum("fpn,fn->fp", slopes, weights * residuals) / DELTA
    return huber.sum(axis=1), gradient, (slopes / DELTA, weights)


def _minimised(theta: np.ndarray, logs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """L-BFGS of many starts at once, each with its line search; the lowest value first."""
    value, gradient, _ = _value(theta, logs, target)
    moves: list[np.ndarray] = []
    changes: list[np.ndarray] = []
    for _ in range(STEPS):
        direction = -_two_loops(gradient, moves, changes)
        slope = (direction * gradient).sum(axis=1)
        uphill = slope >= 0
        direction[uphill] = -gradient[uphill]
        slope[uphill] = -(gradient[uphill] ** 2).sum(axis=1)
        longest = np.abs(direction).max(axis=1, keepdims=True)
        step = np.minimum(1.0, 1.0 / np.maximum(longest, 1e-300))  # of 1 in the logarithms at most
        for _ in range(25):
            trial = theta + step * direction
            height, new_gradient, _ = _value(trial, logs, target)
            high = height > value + 1e-4 * step[:, 0] * slope
            if not high.any():
                break
            step[high] /= 2
        trial = np.where(high[:, None], theta, trial)
        new_gradient = np.where(high[:, None], gradient, new_gradient)
        moves, changes = [*moves, trial - theta][-MEMORY:], [*changes, new_gradient - gradient]
        changes = changes[-MEMORY:]
        theta, gradient, value = trial, new_gradient, np.where(high, value, height)
        if high.all():
            break
    return theta[np.argsort(value, kind="stable")]


def _two_loops(
    gradient: np.ndarray, moves: list[np.ndarray], changes: list[np.ndarray]
) -> np.ndarray:
    """The inverse Hessian of L-BFGS times the gradient (Nocedal, Math. Comp. 35, 1980)."""
    result, shares, inverses = gradient.copy(), [], []
    for move, change in zip(reversed(moves), reversed(changes), strict=True):
        product = (move * change).sum(axis=1)
        usable = product > 1e-14 * (change**2).sum(axis=1)
        inverses.append(np.where(usable, 1 / np.where(usable, product, 1.0), 0.0))
        shares.append(inverses[-1] * (move * result).sum(axis=1))
        result -= shares[-1][:, None] * change
    if moves:
        product = (moves[-1] * changes[-1]).sum(axis=1)
        size = (changes[-1] ** 2).sum(axis=1)
        result *= np.where(product > 0, product / np.maximum(size, 1e-300), 1.0)[:, None]
    for move, change, share, inverse in zip(
        moves, changes, reversed(shares), reversed(inverses), strict=True
    ):
        back = inverse * (change * result).sum(axis=1)
        result += (share - back)[:, None] * move
    return result


def _polished(theta: np.ndarray, logs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Reweighted Gauss-Newton steps with damping, of many fits; target [fits, runs]."""
    theta = theta.copy()
    lowest, gradient, (slopes, weights) = _value(theta, logs, target)
    damping, identity = np.full(len(theta), 1e-6), np.eye(theta.shape[1])
    for _ in range(POLISH):
        hessian = (slopes * weights[:, None]) @ slopes.swapaxes(1, 2)
        size = np.einsum("fpp->fp", hessian) * damping[:, None] + 1e-200
        hessian = hessian + size[:, :, None] * identity
        trial = theta - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        trial = np.clip(trial, theta - 2.0, theta + 2.0)
        value, new_gradient, (new_slopes, new_weights) = _value(trial, logs, target)
        better = value < lowest
        theta[better], lowest[better] = trial[better], value[better]
        gradient[better], slopes[better] = new_gradient[better], new_slopes[better]
        weights[better] = new_weights[better]
        damping = np.where(better, np.maximum(damping / 10, 1e-12), damping * 10)
        if (damping > 1e9).all():
            break
    return theta
