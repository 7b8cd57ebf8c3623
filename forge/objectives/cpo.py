"""Contrastive preference optimization."""

from __future__ import annotations

from forge.config.objectives.preference import CPO as CPOConfig
from forge.data.batches.loader import Batch
from forge.objectives.preference import Compared, Preference, ResponsePair, preferred


class CPO(Preference):
    """CPO: -log sigmoid(beta * (log p_chosen - log p_rejected)) + weight * cross-entropy of the
    chosen response (arXiv:2401.08417, equation 6); hinge and ipo of the same difference.
    """

    section: CPOConfig

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        section, beta = self.section, self.section.beta
        difference = both.chosen.logp - both.rejected.logp
        if section.loss_fn == "ipo":
            loss = (difference - 1 / (2 * beta)).square()
        elif section.loss_fn == "hinge":
            loss = (1 - beta * difference).relu()
        else:
            loss = preferred(beta * difference, section.label_smoothing)
        nll = -both.chosen.per_token
        return Compared(
            loss=loss + section.nll_weight * nll,
            rewards=(beta * both.chosen.logp, beta * both.rejected.logp),
            more={"nll": nll},
        )
