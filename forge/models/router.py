"""The router: choice and weights of the experts for each token."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.moe import MoE as MoEConfig
from forge.models.norm import eps_for


class Routed(NamedTuple):
    """The router's choice for each token.

    experts: [tokens, top_k] int64, the best first. weights: [tokens, top_k], of the experts'
    outputs. logits, shares: [tokens, experts], before and after the score function; shares add up
    to 1.
    """

    experts: Tensor
    weights: Tensor
    logits: Tensor
    shares: Tensor


class Router(nn.Module):
    """Scores of all experts from a linear layer; each token goes to the top_k best experts.

    softmax_topk: a softmax over all experts (Switch, arXiv:2101.03961, with the weights of Mixtral,
    arXiv:2401.04088). sigmoid_topk: a sigmoid for each expert (DeepSeek-V3, arXiv:2412.19437,
    equations 12 to 16).

    selection_bias: [experts], added to the scores for the choice only, to balance the load without
    a gradient (arXiv:2408.15664); saved, and moved by `forge.models.balance`.
    """

    selection_bias: Tensor

    def __init__(self, section: MoEConfig, dim: int, eps: float | None = None) -> None:
        super().__init__()
        self.section = section
        self.weight = nn.Parameter(torch.empty(section.num_experts, dim))
        nn.init.normal_(self.weight, std=dim**-0.5)
        zeros = torch.zeros(section.num_experts, dtype=torch.float32)
        self.bias = nn.Parameter(zeros.clone()) if section.router_bias else None
        self.input_scale = nn.Parameter(torch.ones(dim)) if section.router_norm else None
        of_experts = section.per_expert_scale
        self.expert_scale = nn.Parameter(zeros.clone() + 1) if of_experts else None
        self.eps = eps
        self.register_buffer("selection_bias", zeros)

    def forward(self, x: Tensor) -> Routed:
        """x: [tokens, dim]; scores and weights are at least fp32."""
        if self.input_scale is not None:
            x = F.rms_norm(x, x.shape[-1:], None, eps_for(self, x))
            x = x * self.input_scale.to(x.dtype) * x.shape[-1] ** -0.5
        section, logits = self.section, self._logits(x)
        if section.router == "softmax_topk":
            scores = shares = logits.softmax(-1)
        else:
            scores = logits.sigmoid()
            shares = scores / scores.sum(-1, keepdim=True)
        # The choice has no gradient; the weights have, from the scores.
        experts = self._choose(scores.detach())
        weights = scores.gather(1, experts)
        if section.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        if self.expert_scale is not None:
            weights = weights * self.expert_scale.to(weights.dtype)[experts]
        return Routed(experts, weights * section.routed_scaling_factor, logits, shares)

    def reset_buffers(self) -> None:
        self.selection_bias.zero_()

    def _logits(self, x: Tensor) -> Tensor:
        if not self.section.float32_gate_logits:
            logits = F.linear(x, self.weight, self.bias)
            return logits.to(torch.promote_types(logits.dtype, torch.float32))
        dtype = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        return F.linear(x.to(dtype), self.weight.to(dtype), bias)

    def _choose(self, scores: Tensor) -> Tensor:
        """Choose the top_k experts of each token, from the best groups (arXiv:2405.04434, section
        2.2.2). A group's score is the score of the best expert (DeepSeek-V2), or the sum of the two
        best (V3).
        """
        section, scores = self.section, scores + self.selection_bias
        if section.force_balance:
            turns = torch.arange(len(scores) * section.top_k, device=scores.device)
            return turns.view(len(scores), section.top_k) % section.num_experts
        if section.n_routing_groups > 1:
            groups = scores.unflatten(1, (section.n_routing_groups, -1))
            counted = min(1 if section.computed_group_score == "max" else 2, groups.shape[2])
            goodness = groups.topk(counted, dim=-1).values.sum(-1)
            best = goodness.topk(section.topk_routing_group, dim=-1).indices
            barred = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter(1, best, False)
            # -inf, not 0: a selection bias can make the scores of other groups negative.
            scores = groups.masked_fill(barred.unsqueeze(-1), -torch.inf).flatten(1)
        return scores.topk(section.top_k, dim=-1).indices
