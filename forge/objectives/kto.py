"""Kahneman-Tversky optimization."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.objectives.preference import KTO as KTOConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Samples
from forge.models.contract import LanguageModel
from forge.objectives.losses import Losses
from forge.objectives.objective import LookedAhead, Reads
from forge.objectives.responses import ResponseObjective, each_response
from forge.objectives.whole_rows import sums_over_rows, whole_rows_of
from forge.tensors.wide import widest

LABELS = {"desirable": True, "undesirable": False}


class KTO(ResponseObjective):
    """KTO: w * (1 - sigmoid(s * beta * (r - kl))), r = log p(response) - log p_ref(response), w =
    desirable_weight and s = 1 for a desirable response, else undesirable_weight and -1
    (arXiv:2402.01306, equation 8, less the constant).

    kl = max(0, mean of r over mismatched responses), without gradient. After its own response each
    example brings a response to another prompt, the same in every epoch, so that a reference can be
    computed before training. The mean is over all examples of a step, on all ranks and in all
    micro-batches, so that every layout has the same loss; in an evaluation over all its examples.
    The mean takes a forward pass of its own, before the loss.

    A batch has two rows for each example, matched and mismatched, and `liked`, bool [rows]; the
    batch to learn from has the matched rows, and `kl`, [rows].
    """

    section: KTOConfig
    looks_ahead = True

    def __init__(self, section: KTOConfig, **runtime: Any) -> None:
        super().__init__(section, **runtime)
        self.counts = {
            f"{name}_{label}": f"n_{label}" for label in LABELS for name in ("reward", "logp")
        }
        self.sums = ("n", *dict.fromkeys(self.counts.values()), *section.metrics)

    def collate(self, samples: Samples) -> Batch:
        liked = torch.tensor([sample.liked for sample in samples])
        return super().collate(samples) | {"liked": liked.repeat_interleave(2)}

    def looked_ahead(
        self, batches: Sequence[Batch], read: Reads, total: Callable[[Tensor], Tensor]
    ) -> LookedAhead:
        matched, mismatched = ([_of_side(batch, side) for batch in batches] for side in (0, 1))
        device = batches[0]["tokens"].device
        sums = torch.zeros(2, dtype=widest(device), device=device)
        for batch in mismatched:
            model = read(batch)
            if model is not None:
                ratio = each_response(model, batch) - self.reference(model, batch)
                has_response = _there(model, batch)
                sums[0] += ratio.where(has_response, 0).sum()
                sums[1] += has_response.sum()
        total(sums)
        kl = (sums[0] / sums[1].clamp(min=1)).clamp(min=0)
        ready = [batch | {"kl": kl.expand(len(batch["liked"]))} for batch in matched]
        return LookedAhead(ready)

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        reported, loss = self._valued(model, batch)
        return Losses(total=loss, sums={name: reported[name] for name in self.sums[1:]})

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        return self._valued(model, batch)[0]

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over examples, or over the examples of a label; NaN without such examples."""
        sizes = {name: totals[self.counts.get(name, "n")] for name in self.section.metrics}
        return {name: totals[name] / n if n else math.nan for name, n in sizes.items()}

    def _valued(self, model: LanguageModel, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Sums over examples by name, without a graph; and the summed loss with a graph."""
        section, liked = self.section, batch["liked"]
        reference = self.reference(model, batch)  # first, while no graph is in memory
        logp = each_response(model, batch)
        ratio, kl = logp - reference.to(logp.dtype), batch["kl"].to(logp.dtype)
        margin = section.beta * torch.where(liked, ratio - kl, kl - ratio)
        weight = torch.full_like(margin, section.undesirable_weight)
        weight = weight.masked_fill(liked, section.desirable_weight)
        values = {
            "n": torch.ones_like(margin),
            "loss": weight * torch.sigmoid(-margin),
            "accuracy": (margin > 0).to(margin.dtype),
            "margin": margin,
            "kl": kl,
        }
        for label, sign in LABELS.items():
            of_label = liked == sign
            values[f"n_{label}"] = of_label.to(margin.dtype)
            values[f"reward_{label}"] = (section.beta * ratio).where(of_label, 0)
            values[f"logp_{label}"] = logp.where(of_label, 0)
        return sums_over_rows(values, _there(model, batch), model)


def _of_side(batch: Batch, side: int) -> Batch:
    return {name: values[side::2] for name, values in batch.items()}


def _there(model: LanguageModel, batch: Batch) -> Tensor:
    """Mark rows with a response, bool [rows]; rows that only fill up a batch have none."""
    return whole_rows_of(model).total((batch["targets"] != IGNORE_INDEX).sum(1)) > 0
