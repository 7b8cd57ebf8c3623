"""Direct preference optimization."""

from __future__ import annotations

import torch
from torch import Tensor

from forge.config.preference import DPO as DPOConfig
from forge.data.loader import Batch
from forge.objectives.preference import Both, Compared, Preference, paired, preferred, responses


class DPO(Preference):
    """-log sigmoid(beta * (r_chosen - r_rejected)), r = log p(response) - log p_ref(response)
    (arXiv:2305.18290, equation 7).

    hinge: max(0, 1 - beta * (r_chosen - r_rejected)) (arXiv:2305.10425). ipo: (r_chosen -
    r_rejected - 1 / (2 beta))^2 of log-ratios per token (arXiv:2310.12036, equation 17).
    """

    section: DPOConfig

    def compare(self, both: Both, batch: Batch) -> Compared:
        section, beta = self.section, self.section.beta
        reference = self._reference(both, batch)
        pairs = zip(both, reference, strict=True)
        ratios = [ours.logp - theirs.logp for ours, theirs in pairs]
        difference = ratios[0] - ratios[1]
        if section.loss_fn == "ipo":
            each = [
                ratio / side.tokens.clamp(min=1) for ratio, side in zip(ratios, both, strict=True)
            ]
            loss = (each[0] - each[1] - 1 / (2 * beta)).square()
        elif section.loss_fn == "hinge":
            loss = (1 - beta * difference).relu()
        else:
            loss = preferred(beta * difference, section.label_smoothing)
        return Compared(
            loss=loss,
            rewards=(beta * ratios[0], beta * ratios[1]),
            more={"kl": (ratios[0] + ratios[1]) / 2},
        )

    def _reference(self, both: Both, batch: Batch) -> Both:
        logp = torch.zeros_like(both.chosen.logp).repeat(2)
        if "reference" in batch:
            logp = batch["reference"].to(logp.dtype)
        elif not self.section.reference_free:
            with torch.no_grad():
                return responses(self.models["reference"], batch)  # type: ignore[arg-type]
        return paired(logp, _tokens(both))


def _tokens(both: Both) -> Tensor:
    return torch.stack([both.chosen.tokens, both.rejected.tokens], dim=1).flatten()
