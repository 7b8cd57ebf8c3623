"""Advantages of tokens from values: generalised advantage estimation, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forge.config.objectives.grpo import GRPO
from forge.rollouts.completion import Completion

TINY = 1e-8  # beside the variance, as in TRL


def gae(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """Advantages of the tokens of a completion, whose last token ends it (arXiv:1506.02438).

    A_t = d_t + gamma * lam * A_(t+1), d_t = r_t + gamma * V_(t+1) - V_t, 0 after the end.
    """
    following = np.append(values[1:], 0.0)
    differences = rewards + gamma * following - values
    advantages, later = np.zeros_like(values), 0.0
    for token in reversed(range(len(values))):
        later = differences[token] + gamma * lam * later
        advantages[token] = later
    return advantages


def whitened(values: np.ndarray) -> np.ndarray:
    """Values less their mean, over their deviation with n - 1."""
    if len(values) < 2:
        return values
    return (values - values.mean()) / np.sqrt(values.var(ddof=1) + TINY)


def advance_by_values(
    section: GRPO, rows: Sequence[Completion], totals: Sequence[float | None]
) -> None:
    """Give the tokens of completions their advantages and returns, by their values.

    totals: the reward of each completion, None = not judged: such a completion is not learnt. The
    reward counts at the last token of the model, and each token's divergence at that token. Replies
    of an environment are skipped: the value behind a turn is that of the next one. The mean and
    the deviation are of the tokens that are learnt.
    """
    for row, total in zip(rows, totals, strict=True):
        row.learnt &= total is not None
        _estimate(section, row, total or 0.0)
    learnt = [row for row in rows if row.learnt]
    if section.whiten_advantages and learnt:
        masks = [mask_of(row) for row in learnt]
        parts = [np.array(row.advantages)[m] for row, m in zip(learnt, masks, strict=True)]
        white = np.split(
            whitened(np.concatenate(parts)), np.cumsum([len(part) for part in parts])[:-1]
        )
        for row, mask, part in zip(learnt, masks, white, strict=True):
            row.advantages = _spread(part, mask)
    for row in rows:
        row.advantage = float(np.mean(np.array(row.advantages)[mask_of(row)]))


def _estimate(section: GRPO, row: Completion, total: float) -> None:
    mask, values = mask_of(row), np.array(row.values, dtype=np.float64)
    values = values[mask]
    rewards = np.zeros_like(values)
    if section.beta and section.kl_in == "reward":
        difference = np.array(row.old) - np.array(row.reference)
        rewards -= section.beta * difference[mask]
    rewards[-1] += total
    advantages = gae(rewards, values, gamma=section.gamma, lam=section.lam)
    row.advantages = _spread(advantages, mask)
    row.returns = _spread(advantages + values, mask)


def mask_of(row: Completion) -> np.ndarray:
    """Whether each token is the model's, [tokens]."""
    return np.array(row.mask or [1] * len(row.ids), dtype=bool)


def _spread(values: np.ndarray, mask: np.ndarray) -> list[float]:
    """Values at the tokens of the model, 0 at all others."""
    result = np.zeros(len(mask))
    result[mask] = values
    return result.tolist()
