"""Policy optimization from groups of completions: GRPO and its kin."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

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

OLD, SAMPLED, REFERENCE, SUPPORT = "old", "sampled", "reference", "support"
BY_TOKEN = ("tokens", "targets", "weights", OLD, SAMPLED, REFERENCE)


class GRPO(Objective):
    """The sum over tokens of weight * (L + beta * KL) - c * entropy, of a batch made by a rollout.

    A batch has tokens, targets, weights, [rows, seq], and advantages, [rows]; and log-probabilities
    of targets, [rows, seq]: `old`, of the weights at the rollout, left out where these are the
    trained ones; `sampled`, of the sampler; `reference`. weights: by `objective.aggregation`, times
    the targets of the step, 0 where nothing is learnt. temperature: of the sampler. `support`:
    [rows, seq, candidates], ids that the sampler's cut left to draw from, -1 in places without one;
    all distributions are over these alone.
    """

    section: GRPOConfig
    along_sequence = BY_TOKEN
    temperature: float = 1.0

    def read(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the targets, and entropies: [rows, seq] each, 0 where masked."""
        hidden, targets = hidden_of(model, batch), batch["targets"]
        return log_probs_and_entropies(
            hidden,
            head_of(model),
            targets,
            temperature=self.temperature,
            support=batch.get(SUPPORT),
        )

    @torch.no_grad()
    def read_reference(self, model: nn.Module, batch: Batch) -> Tensor:
        """Log-probabilities of the targets under the reference."""
        reference: Any = self.models.get(REFERENCE, model)
        with ExitStack() as inside:
            if self.section.reference == "adapter":
                inside.enter_context(self.without_adapter(reference))
                inside.enter_context(evaluating(reference))
            return self.read(reference, batch)[0]

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        section, (logp, entropy) = self.section, self.read(model, batch)
        weights = batch["weights"].to(logp.dtype)
        mask = (batch["targets"] != IGNORE_INDEX).to(logp.dtype)
        learnt = (weights != 0).to(logp.dtype)
        advantages = batch["advantages"].to(logp.dtype)[:, None]
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
        loss = weights * loss
        if section.entropy_bonus:
            loss = loss - section.entropy_bonus * learnt * entropy
        sums |= {"entropy": entropy, "clip_ratio/low_mean": policy.is_low}
        sums |= {"clip_ratio/high_mean": policy.is_high}
        sums["clip_ratio/region_mean"] = policy.is_low | policy.is_high
        totals = {name: (value * learnt).sum().detach() for name, value in sums.items()}
        total = loss.sum()
        return Losses(total=total, sums={"loss": total.detach(), **totals})
