"""Odds ratio preference optimization."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from forge.config.objectives.preference import ORPO as ORPOConfig
from forge.data.batches.loader import Batch
from forge.objectives.preference import Compared, Preference, ResponsePair, preferred


class ORPO(Preference):
    """ORPO: -log p_chosen + lambda * -log sigmoid(log odds_chosen - log odds_rejected), odds = p /
    (1 - p), log p the mean over a response's tokens (arXiv:2403.07691, equations 3 to 7).
    """

    section: ORPOConfig

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        weight, (chosen, rejected) = self.section.lambda_weight, both
        log_odds = chosen.per_token - rejected.per_token
        log_odds = log_odds - (log1mexp(chosen.per_token) - log1mexp(rejected.per_token))
        return Compared(
            loss=weight * preferred(log_odds) - chosen.per_token,
            rewards=(weight * chosen.per_token, weight * rejected.per_token),
            more={"nll": -chosen.per_token, "log_odds": log_odds},
        )


def log1mexp(logp: Tensor) -> Tensor:
    """log(1 - exp(logp)) of logp <= 0 without loss of digits (Maechler, Accurately Computing
    log(1 - exp(-|a|)), 2012); logp of a certain response counts as the next number below 0.
    """
    logp = logp.clamp(max=-torch.finfo(logp.dtype).eps)
    near = logp > -math.log(2)
    # Each branch gets numbers with finite results, else NaN would reach the other's gradient.
    small = torch.log(-torch.expm1(logp.where(near, -1.0)))
    return small.where(near, torch.log1p(-torch.exp(logp.where(~near, -1.0))))
