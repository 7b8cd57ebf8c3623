"""Advantages of completions from the rewards of whole groups, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

TINY = 1e-4  # beside deviations, as in TRL
Rewards = Sequence[float | None]


def numbers(rewards: Rewards) -> np.ndarray:
    """Rewards as float64, None as NaN."""
    return np.array([np.nan if reward is None else reward for reward in rewards], dtype=np.float64)


def advantages_of(
    kind: str,
    total: Rewards,
    by_name: Mapping[str, Rewards],
    weights: Mapping[str, float],
    group: int,
) -> np.ndarray:
    """Advantage of each completion, [completions], in groups of `group` in a row.

    kind: as `objective.advantage`. total: the weighted sum of the rewards; None = not judged: such
    a completion is in no mean, and has advantage 0. by_name, weights: of each reward.
    """
    rewards = numbers(total)
    groups = rewards.reshape(-1, group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of groups without a judged completion
        if kind == "per_reward":
            parts = [
                weights[name] * normalised(numbers(values).reshape(-1, group)).ravel()
                for name, values in by_name.items()
            ]
            summed = np.nansum(parts, axis=0)
            summed[np.isnan(rewards)] = np.nan
            result = normalised(summed[None])
        elif kind == "group":
            result = normalised(groups)
        elif kind == "rloo":
            judged = np.sum(~np.isnan(groups), axis=1, keepdims=True)
            others = np.nansum(groups, axis=1, keepdims=True) - groups
            with np.errstate(divide="ignore", invalid="ignore"):
                result = groups - others / (judged - 1)
        else:
            result = groups - np.nanmean(groups, axis=1, keepdims=True)
            if kind == "batch":
                result = result / (deviation(rewards[None]) + TINY)
    return np.nan_to_num(result.ravel(), nan=0.0, posinf=0.0, neginf=0.0)


def normalised(values: np.ndarray) -> np.ndarray:
    """Each row less its mean, over its deviation. [rows, values]"""
    return (values - np.nanmean(values, axis=1, keepdims=True)) / (deviation(values) + TINY)


def deviation(values: np.ndarray) -> np.ndarray:
    """Standard deviation of each row with n - 1, [rows, 1]; 0 of fewer than two values."""
    counts = np.sum(~np.isnan(values), axis=1, keepdims=True)
    squares = np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2, 1, keepdims=True)
    return np.sqrt(squares / np.maximum(counts - 1, 1))


def degenerate(total: Rewards, group: int) -> np.ndarray:
    """Whether the rewards of each group are equal, [groups]."""
    groups = numbers(total).reshape(-1, group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.isclose(np.nan_to_num(deviation(groups)[:, 0]), 0.0)
