"""Rewards of completions, by forge's functions or a user's.

    scorer = Scorer({"exact": {"_target_": "forge.rewards.exact.Exact"}})
    scores = scorer.score(prompts, completions, completion_ids, {"answer": answers})
    scores.total, scores.by_name["exact"]

Torch-free. A reward is a function with TRL's signature, (prompts, completions, completion_ids,
**columns) -> list of numbers or None; None = the reward does not judge this completion.
"""

from forge.rewards.scorer import RewardError, Scorer, Scores

__all__ = ["RewardError", "Scorer", "Scores"]
