"""Next-token prediction against smoothed targets (Szegedy et al. 2015, arXiv:1512.00567, section
7).
"""

from __future__ import annotations

from forge.api import IGNORE_INDEX, Batch, LanguageModel, Losses, NextToken
from forge_example.conf import LabelSmoothing as LabelSmoothingConfig


class LabelSmoothing(NextToken):
    """Sum over unmasked targets of -(1 - s) log p(target) - s * mean of log p over all tokens."""

    section: LabelSmoothingConfig

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        """Losses of one micro-batch: `total`, and the sum `ce`, which is logged as train/loss and
        knows nothing of the smoothing.
        """
        log_p = model(batch["tokens"]).float().log_softmax(-1)
        kept = batch["targets"] != IGNORE_INDEX
        nats = (
            -log_p.gather(-1, batch["targets"].where(kept, 0).unsqueeze(-1))
            .squeeze(-1)
            .where(kept, 0)
            .sum()
        )
        spread = -log_p.mean(-1).where(kept, 0).sum()
        smoothing = self.section.smoothing
        total = (1 - smoothing) * nats + smoothing * spread
        return Losses(total=total, sums={"ce": nats.detach(), "smoothed": total.detach()})
