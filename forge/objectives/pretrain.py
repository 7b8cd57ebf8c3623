"""Next-token prediction, and the loss shared with supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from forge.config.objectives.base import CrossEntropy as Section
from forge.data.batches.loader import Batch
from forge.models.contract import LanguageModel, beside_tokens
from forge.models.head import Head, head_of
from forge.objectives.chunked_cross_entropy import chunked_cross_entropy
from forge.objectives.cross_entropy import cross_entropy
from forge.objectives.further import targets_ahead
from forge.objectives.losses import Losses
from forge.objectives.next_token import NextToken, sums_by_source
from forge.objectives.objective import hidden_of


class CrossEntropy(NextToken):
    """Sum over the targets of cross-entropy + z_loss_weight * (log-partition)^2, weighted by the
    batch's `weights`, if any.

    The second term is PaLM's z-loss (arXiv:2204.02311, section 5).
    """

    section: Section

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        factor, states = self.section.mtp_loss_scaling_factor, ()
        predict = getattr(model, "hidden_ahead", None) if factor else None
        if predict is None:
            hidden = hidden_of(model, batch)
        else:
            hidden, *states = predict(batch["tokens"], **beside_tokens(batch))
        head, options = head_of(model), dict[str, Any](each="sources" in batch)
        options |= {
            "z_loss_weight": self.section.z_loss_weight,
            "smoothing": self.section.smoothing,
        }
        options["weights"] = batch.get("weights")
        losses = self.cross_entropy(model, hidden, head, batch["targets"], **options)
        total, further = losses.total, {}
        for depth, state in enumerate(states, 1):
            targets, weights = targets_ahead(batch, depth)
            of_module = self.cross_entropy(model, state, head, targets, weights=weights)
            total = total + of_module.total * (factor / len(states))
            further[f"mtp_loss_{depth}"] = of_module.ce
        sums = {"ce": losses.ce, "z_loss": losses.z_loss} | further
        if not self.section.z_loss_weight > 0:
            del sums["z_loss"]
        if self.section.smoothing > 0:
            sums["uniform_ce"] = losses.uniform
        if "sources" in batch:
            sums |= sums_by_source(batch, losses.each)
        return Losses(total=total, sums=sums)

    def cross_entropy(
        self, model: LanguageModel, hidden: Tensor, head: Head, targets: Tensor, **options: Any
    ) -> Any:
        """The loss of hidden states, with all logits at once or in chunks; options as of
        `forge.objectives.cross_entropy.cross_entropy`.
        """
        chunked = self.section.loss_fn == "chunked_cross_entropy"
        # With loss_parallel each rank has logits of its own rows, and no rank gathers them all.
        if not chunked and not getattr(model, "loss_parallel", False):
            return cross_entropy(head.logits(hidden), targets, **options)
        size = self.section.ce_chunk_size if chunked else targets.numel()
        options |= {"chunk_size": size, "compile_backend": self.compile_backend}
        return chunked_cross_entropy(hidden, head, targets, **options)


class Pretrain(CrossEntropy):
    """Cross-entropy of running text."""
