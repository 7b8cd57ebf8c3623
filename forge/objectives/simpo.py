"""Simple preference optimization."""

from __future__ import annotations

from forge.config.objectives.preference import SimPO as SimPOConfig
from forge.data.batches.loader import Batch
from forge.objectives.preference import Compared, Preference, ResponsePair, preferred


class SimPO(Preference):
    """SimPO: -log sigmoid(r_chosen - r_rejected - gamma), r = beta * the mean log-probability of a
    response's tokens (arXiv:2405.14734, equation 6).
    """

    section: SimPOConfig

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        section = self.section
        chosen, rejected = (section.beta * side.per_token for side in both)
        loss = preferred(chosen - rejected - section.gamma, section.label_smoothing)
        return Compared(loss=loss, rewards=(chosen, rejected), more={})
