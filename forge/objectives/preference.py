"""Base of objectives that compare a preferred response with a rejected response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.objectives.preference import Preference as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.models.contract import LanguageModel
from forge.objectives.losses import Losses
from forge.objectives.responses import ResponseObjective, each_response
from forge.objectives.whole_rows import sums_over_rows, whole_rows_of


class Responses(NamedTuple):
    """Responses, [pairs] each: log-probability of all of a response's tokens, and their number."""

    logp: Tensor
    tokens: Tensor

    @property
    def per_token(self) -> Tensor:
        return self.logp / self.tokens.clamp(min=1)


class ResponsePair(NamedTuple):
    """The two responses of each pair."""

    chosen: Responses
    rejected: Responses


class Compared(NamedTuple):
    """The comparison of each pair, [pairs]: the loss, with a graph; the rewards of both responses;
    and further values to report, by name.
    """

    loss: Tensor
    rewards: tuple[Tensor, Tensor]
    more: dict[str, Tensor]


class Preference(ResponseObjective):
    """Base of objectives on batches of 2 * pairs rows: the chosen, then the rejected response of
    each pair. The loss of a step is the mean over pairs.
    """

    def __init__(self, section: Section, **runtime: Any) -> None:
        super().__init__(section, **runtime)
        self.sums = ("pairs", *section.metrics)

    def with_reference(self, model: LanguageModel, batch: Batch) -> Batch:
        """Add `reference` to a batch, for an objective with a reference and a batch without."""
        return batch

    def responses(self, model: LanguageModel, batch: Batch) -> ResponsePair:
        """The responses of each pair under a model."""
        return pair_responses(model, batch)

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        """Compare the pairs of a batch."""
        raise NotImplementedError

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        reported, loss = self._compared(model, batch)
        return Losses(total=loss, sums={name: reported[name] for name in self.section.metrics})

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        return self._compared(model, batch)[0]

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over pairs."""
        return {name: totals[name] / max(totals["pairs"], 1) for name in self.section.metrics}

    def _compared(self, model: LanguageModel, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Sums over pairs by name, without a graph; and the summed loss with a graph."""
        batch = self.with_reference(model, batch)  # first, while no graph is in memory
        pairs = self.responses(model, batch)
        complete = pairs.chosen.tokens * pairs.rejected.tokens > 0
        compared = self.compare(pairs, batch)
        chosen, rejected = compared.rewards
        margin = chosen - rejected
        values = {
            "pairs": torch.ones_like(margin),
            "loss": compared.loss,
            "accuracy": (margin > 0).to(margin.dtype),
            "margin": margin,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
            "logp_chosen": pairs.chosen.logp,
            "logp_rejected": pairs.rejected.logp,
            **compared.more,
        }
        return sums_over_rows(values, complete, model)


def pair_responses(model: LanguageModel, batch: Batch) -> ResponsePair:
    """The responses of each pair under a model."""
    tokens = whole_rows_of(model).total((batch["targets"] != IGNORE_INDEX).sum(1))
    return paired(each_response(model, batch), tokens)


def paired(logp: Tensor, tokens: Tensor) -> ResponsePair:
    """Pair responses. logp, tokens: [2 * pairs], chosen and rejected in turn."""
    chosen, rejected = (Responses(logp[side::2], tokens[side::2]) for side in (0, 1))
    return ResponsePair(chosen, rejected)


def preferred(margin: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log of the probability that a response with a reward larger by `margin` is preferred
    (Bradley-Terry), for labels wrong with probability `smoothing`.
    """
    loss = -F.logsigmoid(margin)
    return loss * (1 - smoothing) - F.logsigmoid(-margin) * smoothing if smoothing else loss
