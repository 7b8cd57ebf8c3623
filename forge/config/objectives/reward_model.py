"""Reward models: a number for a response, learnt from preferences."""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.objectives.base import HeadShape
from forge.config.objectives.preference import Preference


@section
class RewardModel(Preference):
    """A reward model by the Bradley-Terry loss, -log sigmoid(r_chosen - r_rejected), r = the head's
    row of one token times the hidden state of the last token (arXiv:2203.02155, equation 1).
    """

    schema_name = "reward_model"
    metrics = ("loss", "accuracy", "margin", "reward_chosen", "reward_rejected")
    _target_: str = "forge.objectives.reward_model.RewardModel"
    score_token: str | None = opt(
        None, "token with the row of the head for scores; null = the one that ends documents"
    )
    center_rewards: float = opt(
        0.0, "weight of (r_chosen + r_rejected)^2, which keeps rewards around 0", ge=0
    )

    def logits_bytes(self, head: HeadShape) -> int:
        """Bytes of the loss: a hidden state of each row, and the gradient of the head."""
        return head.width * head.dim * head.tokens + 4 * head.dim * head.vocab
