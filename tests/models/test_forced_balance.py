"""Routing in turn, whatever the scores are: model.moe.force_balance."""

from __future__ import annotations

import torch

from forge.config.model.moe import MoE
from forge.models.router import Router


def test_every_expert_gets_as_many_tokens_and_weights_are_of_the_scores() -> None:
    torch.manual_seed(0)
    router = Router(MoE(num_experts=6, top_k=2, force_balance=True), 5)
    x = torch.randn(9, 5) + 3 * router.weight[0]  # by the scores most would go to one expert
    routed = router(x)
    assert routed.experts.flatten().bincount(minlength=6).tolist() == [3] * 6
    assert all(len(set(row)) == 2 for row in routed.experts.tolist())
    shares = routed.logits.softmax(-1).gather(1, routed.experts)
    torch.testing.assert_close(routed.weights, shares / shares.sum(-1, keepdim=True))
