"""Direct preference optimization."""

from __future__ import annotations

from forge.config.objectives.preference import DPO as DPOConfig
from forge.data.batches.loader import Batch
from forge.models.contract import LanguageModel
from forge.objectives.preference import Compared, Preference, ResponsePair, preferred


class DPO(Preference):
    """DPO: -log sigmoid(beta * (r_chosen - r_rejected)), r = log p(response) - log p_ref(response)
    (arXiv:2305.18290, equation 7).

    hinge: max(0, 1 - beta * (r_chosen - r_rejected)) (arXiv:2305.10425). ipo: (r_chosen -
    r_rejected - 1 / (2 beta))^2 of log-ratios per token (arXiv:2310.12036, equation 17).
    """

    section: DPOConfig

    def with_reference(self, model: LanguageModel, batch: Batch) -> Batch:
        if self.section.reference_free:
            return batch
        return batch | {"reference": self.reference(model, batch)}

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        section, beta = self.section, self.section.beta
        chosen, rejected = (side.logp for side in both)
        if "reference" in batch:
            reference = batch["reference"].to(chosen.dtype)
            chosen, rejected = chosen - reference[0::2], rejected - reference[1::2]
        if section.loss_fn == "ipo":
            lengths = [side.tokens.clamp(min=1) for side in both]
            loss = (chosen / lengths[0] - rejected / lengths[1] - 1 / (2 * beta)).square()
        elif section.loss_fn == "hinge":
            loss = (1 - beta * (chosen - rejected)).relu()
        else:
            loss = preferred(beta * (chosen - rejected), section.label_smoothing)
        return Compared(
            loss=loss,
            rewards=(beta * chosen, beta * rejected),
            more={"kl": (chosen + rejected) / 2},
        )
