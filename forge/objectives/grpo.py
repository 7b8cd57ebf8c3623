"""Policy optimization from groups of completions: GRPO and its kin."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forge.config.objectives.grpo import GRPO as GRPOConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.objectives.log_probs import log_probs_and_entropies
from forge.objectives.losses import Losses
from forge.objectives.objective import Objective, hidden_of
from forge.objectives.policy import divergence, mismatch_weight, policy_loss, ratio_of
from forge.objectives.value_head import NAME as VALUE_HEAD
from forge.objectives.values import value_loss

OLD, SAMPLED, REFERENCE, SUPPORT = "old", "sampled", "reference", "support"
VALUES, RETURNS = "values", "returns"
BY_TOKEN = ("tokens", "targets", "weights", OLD, SAMPLED, REFERENCE, VALUES, RETURNS)


class Reading(NamedTuple):
    """A batch as a model reads it: log-probabilities of targets, entropies, values; [rows, seq]."""

    logp: Tensor
    entropy: Tensor
    values: Tensor | None


class GRPO(Objective):
    """The sum over tokens of weight * (L + beta * KL + v * value loss) - c * entropy.

    It is of a batch made by a rollout.

    A batch has tokens, targets, weights, [rows, seq], and advantages, [rows] or with a value head
    [rows, seq]; and log-probabilities of targets, [rows, seq]: `old`, of the weights at the
    rollout, left out where these are the trained ones; `sampled`, of the sampler; `reference`.
    values, returns: [rows, seq], by the value head at the rollout, and its targets. weights: by
    `objective.aggregation`, times the targets of the step, 0 where nothing is learnt. temperature:
    of the sampler. support: [rows, seq, candidates], ids that the sampler's cut left to draw from,
    -1 in places without one; all distributions are over these alone.
    """

    section: GRPOConfig
    along_sequence = BY_TOKEN
    temperature: float = 1.0

    def read(self, model: LanguageModel, batch: Batch) -> Reading:
        """Log-probabilities of the targets, entropies, and with a value head values: [rows, seq]
        each, log-probabilities and entropies 0 where masked.
        """
        hidden, targets = hidden_of(model, batch), batch["targets"]
        both = log_probs_and_entropies(
            hidden,
            head_of(model),
            targets,
            temperature=self.temperature,
            support=batch.get(SUPPORT),
        )
        head = getattr(model, VALUE_HEAD, None) if self.section.has_critic else None
        return Reading(*both, values=None if head is None else head(hidden))

    @torch.no_grad()
    def read_reference(self, model: nn.Module, batch: Batch) -> Tensor:
        """Log-probabilities of the targets under the reference."""
        reference: Any = self.models.get(REFERENCE, model)
        with ExitStack() as inside:
            if self.section.reference == "adapter":
                inside.enter_context(self.without_adapter(reference))
                inside.enter_context(evaluating(reference))
            return self.read(reference, batch).logp

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        section, (logp, entropy, values) = self.section, self.read(model, batch)
        weights = batch["weights"].to(logp.dtype)
        mask = (batch["targets"] != IGNORE_INDEX).to(logp.dtype)
        learnt = (weights != 0).to(logp.dtype)
        advantages = batch["advantages"].to(logp.dtype)
        advantages = advantages if values is not None else advantages[:, None]
        old = batch[OLD].to(logp.dtype) if OLD in batch else logp.detach()
        policy = policy_loss(section, logp, ratio_of(section, logp, old, mask), advantages)
        loss, sums = policy.loss, {}
        if section.mismatch != "none":
            sampled = batch[SAMPLED].to(logp.dtype)
            weight = mismatch_weight(section, old, sampled, mask)
            loss = loss * weight
            sums["sampling/importance_sampling_ratio/mean"] = weight
        if SAMPLED in batch:
            difference = (old - batch[SAMPLED].to(logp.dtype)).abs()
            sums["sampling/sampling_logp_difference/mean"] = difference
        if REFERENCE in batch:
            reference = batch[REFERENCE].to(logp.dtype)
            kl = divergence(section.kl, logp, reference)
            sums["kl"] = kl
            if section.kl_in == "loss":
                loss = loss + section.beta * kl
        if values is not None:
            of_values = value_loss(section, values, batch[VALUES], batch[RETURNS])
            loss = loss + section.vf_coef * of_values.loss
            sums |= {"value_loss": of_values.loss, "value_clip_ratio": of_values.is_clipped}
        loss = weights * loss
        if section.entropy_bonus:
            loss = loss - section.entropy_bonus * learnt * entropy
        sums |= {"entropy": entropy, "clip_ratio/low_mean": policy.is_low}
        sums |= {"clip_ratio/high_mean": policy.is_high}
        sums["clip_ratio/region_mean"] = policy.is_low | policy.is_high
        totals = {name: (value * learnt).sum().detach() for name, value in sums.items()}
        total = loss.sum()
        return Losses(total=total, sums={"loss": total.detach(), **totals})
