"""The law of loss over parameters and tokens, and the best use of a budget under the law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge.scaling_laws.projection import Powers

FLOPS = 6.0  # of training, for a parameter and a token


@dataclass(frozen=True, kw_only=True)
class Law:
    """loss = E + A / N ** alpha + B / D ** beta, of N parameters and D tokens (Hoffmann et al.,
    2203.15556, equation 2).
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        return (
            self.E
            + self.A / np.power(parameters, self.alpha)
            + self.B / np.power(tokens, self.beta)
        )


def law_of(powers: Powers) -> Law:
    """The law of a single fit over parameters and tokens."""
    floor, a, b = (float(value) for value in powers.coefficients[0])
    alpha, beta = (float(value) for value in powers.exponents[0])
    return Law(E=floor, A=a, alpha=alpha, B=b, beta=beta)


def size_exponent(powers: Powers, flops: Flops | None = None) -> np.ndarray:
    """a of N ~ C ** a, the best size for a budget C [data sets]."""
    alpha, beta = powers.exponents.T
    return beta / (alpha + (flops or Flops()).power * beta)


def best_size(powers: Powers, budget: float, flops: Flops | None = None) -> np.ndarray:
    """The number of parameters with the lowest loss for a budget of FLOPs [data sets].

    The closed form of Chinchilla's equation 4, for FLOPs that grow as a power of the parameters.
    """
    flops = flops or Flops()
    alpha, beta = powers.exponents.T
    logs = np.log(powers.coefficients)
    # D = C / (f N ** s): the loss is E + A / N ** alpha + B (f / C) ** beta N ** (s beta).
    rise = flops.power * beta
    ratio = np.log(alpha / rise) + logs[:, 1] - logs[:, 2]
    return np.exp((ratio + beta * (np.log(budget) - np.log(flops.factor))) / (alpha + rise))


def least_loss(powers: Powers, budget: float, flops: Flops | None = None) -> np.ndarray:
    """The lowest loss for a budget of FLOPs [data sets]."""
    flops = flops or Flops()
    size = best_size(powers, budget, flops)
    logs = np.log(np.stack([size, flops.tokens(budget, size)])) - powers.centre[:, None]
    powered = np.exp(-powers.exponents * logs.T)
    return powers.scaled[:, 0] + (powers.scaled[:, 1:] * powered).sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs of training a token: factor * parameters ** power; 6 N for the usual estimate."""

    factor: float = FLOPS
    power: float = 1.0

    def per_token(self, parameters: np.ndarray) -> np.ndarray:
        return self.factor * np.power(parameters, self.power)

    def tokens(self, budget: float, parameters: np.ndarray) -> np.ndarray:
        return budget / self.per_token(parameters)


def fitted_flops(parameters: np.ndarray, per_token: np.ndarray) -> Flops:
    """The power law through the counted FLOPs of a token, by least squares of logarithms."""
    x, y = np.log(np.asarray(parameters, float)), np.log(np.asarray(per_token, float))
    if np.ptp(x) == 0:
        return Flops(factor=float(np.exp((y - x).mean())))
    power, constant = np.polyfit(x - x.mean(), y, 1)
    return Flops(factor=float(np.exp(constant - power * x.mean())), power=float(power))
