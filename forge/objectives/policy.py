"""Losses of a policy by token: ratios of probabilities, clipping, divergence from a reference."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forge.config.objectives.grpo import GRPO as Section

MOST = 20.0  # largest log-ratio: beyond it exp is useless, and overflows soon


class PolicyLoss(NamedTuple):
    """The loss of each token, [rows, seq]; and whether its ratio lost its gradient, below and above
    the limits, [rows, seq] or [rows, 1].
    """

    loss: Tensor
    is_low: Tensor
    is_high: Tensor


def ratio_of(section: Section, logp: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """The ratio of probabilities: [rows, seq], or [rows, 1] of sequences.

    logp, old: [rows, seq], of the trained weights and of those at the rollout. mask: [rows, seq].
    """
    log_ratio = (logp - old).clamp(-MOST, MOST)
    if section.ratio_level == "token":
        return log_ratio.exp()
    mean = (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    if section.ratio_level == "sequence":
        return mean.exp()
    return (mean.detach() + logp - logp.detach()).exp()


def policy_loss(section: Section, logp: Tensor, ratio: Tensor, advantages: Tensor) -> PolicyLoss:
    """The loss of each token. advantages: [rows, 1], or of each token, [rows, seq]."""
    high = section.epsilon if section.epsilon_high is None else section.epsilon_high
    value, above = ratio.detach(), advantages > 0
    none = torch.zeros_like(value, dtype=torch.bool)
    if section.clip == "none":
        return PolicyLoss(-ratio * advantages, none, none)
    if section.clip == "sapo":
        tau = torch.where(above, section.sapo_temperature_pos, section.sapo_temperature_neg)
        gate = torch.sigmoid(tau.to(ratio.dtype) * (ratio - 1)) * 4 / tau
        return PolicyLoss(-gate * advantages, none, none)
    if section.clip == "cispo":
        loss = -value.clamp(max=high) * advantages * logp
        return PolicyLoss(loss, none, (value > high) & above)
    clipped = ratio.clamp(1 - section.epsilon, 1 + high)
    unclipped = ratio.clamp(max=section.delta) if section.clip == "two_sided" else ratio
    loss = -torch.min(unclipped * advantages, clipped * advantages)
    if section.clip == "dual":
        loss = torch.where(advantages < 0, loss.clamp(max=-section.dual_clip * advantages), loss)
    is_low = (value < 1 - section.epsilon) & (advantages < 0)
    return PolicyLoss(loss, is_low, (value > 1 + high) & above)


def divergence(estimate: str, logp: Tensor, reference: Tensor) -> Tensor:
    """Estimates of KL(policy || reference) of sampled tokens (joschu.net/blog/kl-approx.html).

    The expected gradient of k2 is that of the divergence; that of k3 is not.
    """
    d = (logp - reference).clamp(-MOST, MOST)
    if estimate == "k2":
        return d.square() / 2
    k3 = torch.expm1(-d) + d
    if estimate == "k3":
        return k3
    k2 = d.square() / 2
    return k3.detach() + k2 - k2.detach()


def mismatch_weight(section: Section, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor:
    """Weight of each token or sequence for a sampler with other probabilities, without gradients:
    the ratio trainer / sampler, [rows, seq] or [rows, 1], cut off or masked beyond the limits.
    """
    level, _, how = section.mismatch.partition("_")
    difference = (old - sampled).detach() * mask
    if level == "sequence":
        difference = difference.sum(1, keepdim=True)
    weight = difference.clamp(-MOST, MOST).exp()
    low, high = section.mismatch_min, section.mismatch_max
    if how == "truncate":
        return weight.clamp(low, high)
    return weight.masked_fill((weight < low) | (weight > high), 0)
