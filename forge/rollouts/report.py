"""Values of a rollout to log, under TRL's names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from forge.rollouts.advantages import degenerate, deviation, numbers
from forge.rollouts.completion import STOP, TURNS, Completion


def report_of(rows: Sequence[Completion], group: int) -> dict[str, float]:
    """Means and deviations of the rewards, and lengths of the completions, of a whole rollout."""
    totals = [row.reward for row in rows]
    by_name = {name: [row.rewards[name] for row in rows] for name in rows[0].rewards}
    lengths = np.array([row.n_targets for row in rows], dtype=np.float64)
    ended = np.array([row.finish == STOP for row in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rewards that judge nothing
        values = {
            "reward": np.nanmean(numbers(totals)),
            "reward_std": deviation(numbers(totals)[None])[0, 0],
            "frac_reward_zero_std": degenerate(totals, group).mean(),
        }
        for name, rewards in by_name.items():
            values[f"rewards/{name}/mean"] = np.nanmean(numbers(rewards))
            values[f"rewards/{name}/std"] = deviation(numbers(rewards)[None])[0, 0]
    for prefix, some in (("", lengths), ("terminated_", lengths[ended])):
        for kind, reduce in (("mean", np.mean), ("min", np.min), ("max", np.max)):
            values[f"completions/{kind}_{prefix}length"] = reduce(some) if len(some) else 0.0
    values["completions/clipped_ratio"] = 1 - ended.mean()
    if any(row.mask for row in rows):
        values["completions/mean_turns"] = np.mean([row.turns for row in rows])
        values["completions/frac_max_turns"] = np.mean([row.finish == TURNS for row in rows])
    return {name: float(value) for name, value in values.items()}


def report_of_held_out(rows: Sequence[Completion], group: int) -> dict[str, float]:
    """Mean rewards and lengths, and the mean over prompts of the best reward of a group, which is
    pass@group of rewards 0 and 1.
    """
    report = report_of(rows, group)
    values = {name: report[name] for name in report if name.endswith(("/mean", "/mean_length"))}
    values |= {name: report[name] for name in ("reward", "reward_std", "completions/clipped_ratio")}
    rewards = numbers([row.reward for row in rows]).reshape(-1, group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return values | {"best_reward": float(np.nanmean(np.nanmax(rewards, axis=1)))}


def report_of_dropped(rewards: Sequence[float | None]) -> dict[str, float]:
    """Groups that were dropped for others, of rewards equal in each, and their mean reward."""
    judged = [reward for reward in rewards if reward is not None]
    values = {"refill/groups_dropped": float(len(rewards))}
    return values | ({"refill/reward_of_dropped": float(np.mean(judged))} if judged else {})
