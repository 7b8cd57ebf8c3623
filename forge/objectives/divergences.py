"""Divergences of a student's distribution q from a teacher's p, with their slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

NAMES = ("forward_kl", "reverse_kl", "jsd", "tvd")
LOWEST = -1e4
"""Log-probability that stands for 0, whose product with 0 is 0."""


class Divergence(NamedTuple):
    """values: by name, [tokens]. slope: q times the derivative of the weighted sum by q, [tokens,
    outcomes]. level: sum of the slope over all outcomes, [tokens, 1].

    The derivative by a logit of q is slope - q * level.
    """

    values: dict[str, Tensor]
    slope: Tensor
    level: Tensor


def divergences(
    log_p: Tensor,
    log_q: Tensor,
    weights: Mapping[str, float],
    *,
    beta: float = 0.5,
    total: Callable[[Tensor], Tensor] = lambda values: values,
) -> Divergence:
    """The divergences named by `weights`, for outcomes in the last dimension.

    log_p, log_q: [tokens, outcomes], normalised. total: sums over ranks with other outcomes.
    forward_kl: KL(p || q). reverse_kl: KL(q || p). jsd: beta KL(p || m) + (1 - beta) KL(q || m), m
    = beta p + (1 - beta) q; at beta = 0 forward_kl, at 1 reverse_kl (arXiv:2306.13649, equation 1,
    as TRL weighs it). tvd: half the sum of |p - q|.
    """
    p, q = log_p.exp(), log_q.exp()
    slope, sums = torch.zeros_like(q), []
    for name, weight in weights.items():
        summands, slope_of_term = _term(name, (p, q), (log_p, log_q), beta)
        sums.append(summands.sum(-1))
        slope.add_(slope_of_term, alpha=weight)
    *values, level = total(torch.stack([*sums, slope.sum(-1)])).unbind()
    return Divergence(dict(zip(weights, values, strict=True)), slope, level.unsqueeze(-1))


def _term(
    name: str, probabilities: tuple[Tensor, Tensor], logs: tuple[Tensor, Tensor], beta: float
) -> tuple[Tensor, Tensor]:
    """The summands of a divergence, and q times its derivative by q up to a multiple of q."""
    (p, q), (log_p, log_q) = probabilities, logs
    if name == "jsd" and beta in (0, 1):
        name = "reverse_kl" if beta else "forward_kl"
    if name == "forward_kl":
        return p * (log_p - log_q), -p
    if name == "reverse_kl":
        summands = q * (log_q - log_p)
        return summands, summands
    if name == "tvd":
        difference = q - p
        return difference.abs() / 2, q * difference.sign() / 2
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    of_student = (1 - beta) * q * (log_q - log_m)
    return beta * p * (log_p - log_m) + of_student, of_student
