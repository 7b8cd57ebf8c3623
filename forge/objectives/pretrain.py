"""Next-token prediction, and the loss shared with supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from forge.config.objectives.base import CrossEntropy as Section
from forge.data.batches.loader import Batch
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.objectives.chunked_cross_entropy import chunked_cross_entropy
from forge.objectives.cross_entropy import cross_entropy
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
        targets, options = batch["targets"], dict[str, Any](each="sources" in batch)
        options |= {
            "z_loss_weight": self.section.z_loss_weight,
            "smoothing": self.section.smoothing,
        }
        options["weights"] = batch.get("weights")
        chunked = self.section.loss_fn == "chunked_cross_entropy"
        hidden = hidden_of(model, batch)
        head = head_of(model)
        # With loss_parallel each rank has logits of its own rows, and no rank gathers them all.
        if chunked or getattr(model, "loss_parallel", False):
            size = self.section.ce_chunk_size if chunked else targets.numel()
            options |= {"chunk_size": size, "compile_backend": self.compile_backend}
            losses = chunked_cross_entropy(hidden, head, targets, **options)
        else:
            losses = cross_entropy(head.logits(hidden), targets, **options)
        sums = {"ce": losses.ce, "z_loss": losses.z_loss}
        if not self.section.z_loss_weight > 0:
            del sums["z_loss"]
        if self.section.smoothing > 0:
            sums["uniform_ce"] = losses.uniform
        if "sources" in batch:
            sums |= sums_by_source(batch, losses.each)
        return Losses(total=losses.total, sums=sums)


class Pretrain(CrossEntropy):
    """Cross-entropy of running text."""
