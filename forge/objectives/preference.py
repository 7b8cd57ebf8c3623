"""Base of objectives that compare a response that is preferred with one that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.preference import Preference as Section
from forge.data import IGNORE_INDEX
from forge.data.loader import Batch
from forge.data.samples import Sample, Samples
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.objectives.log_probs import log_probs
from forge.objectives.losses import Losses
from forge.objectives.objective import Objective, read


class Responses(NamedTuple):
    """Of responses, [pairs] each: the log-probability of all of their tokens, and their number."""

    logp: Tensor
    tokens: Tensor

    @property
    def per_token(self) -> Tensor:
        return self.logp / self.tokens.clamp(min=1)


class Both(NamedTuple):
    """Of the two responses of each pair."""

    chosen: Responses
    rejected: Responses


class Compared(NamedTuple):
    """Of each pair, [pairs]: the loss, with a graph; the rewards of both responses; and what else
    is reported, by name.
    """

    loss: Tensor
    rewards: tuple[Tensor, Tensor]
    more: dict[str, Tensor]


class Preference(Objective):
    """Batches of `tokens` and `targets`, int64 [2 * pairs, seq]: of each pair a row with the chosen
    response and one with the rejected one, and a target where a response has a token.

    The loss of a step is the mean over its pairs. reference: of each store of examples, by its
    fingerprint, the log-probabilities that were computed before; such a batch has `reference`,
    [2 * pairs].
    """

    def __init__(self, section: Section, **runtime: Any) -> None:
        super().__init__(section, **runtime)
        self.sums = ("pairs", *section.metrics)
        self.references: dict[str, References] = {}

    def with_reference(self, model: LanguageModel, batch: Batch) -> Batch:
        """The batch with `reference`, where the objective reads one, and it has none."""
        return batch

    def compare(self, both: Both, batch: Batch) -> Compared:
        """What each pair of a batch gives."""
        raise NotImplementedError

    def collate(self, samples: Samples) -> Batch:
        """Two rows for each sample; behind the end of each are tokens 0 without targets."""
        rows = self.section.rows
        tokens = np.zeros((len(samples) * rows, samples.seq_len), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE_INDEX)
        known = np.zeros(len(tokens))
        for number, sample in enumerate(samples):
            for row, (window, counted) in enumerate(sample.rows, start=number * rows):
                assert counted is not None
                end = len(window) - 1
                tokens[row, :end], targets[row, :end] = window[:-1], window[1:]
                targets[row, :end][counted[1:] == 0] = IGNORE_INDEX
            if found := self.references.get(sample.store.fingerprint if self.references else ""):
                known[number * rows : (number + 1) * rows] = found.of(sample)
        batch = {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}
        return batch | ({"reference": torch.from_numpy(known)} if self.references else {})

    def count(self, samples: Samples) -> int:
        """Pairs."""
        return len(samples)

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        reported, loss = self._compared(model, batch)
        return Losses(total=loss, sums={name: reported[name] for name in self.section.metrics})

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        return self._compared(model, batch)[0]

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Means over pairs."""
        return {name: totals[name] / max(totals["pairs"], 1) for name in self.section.metrics}

    def _compared(self, model: LanguageModel, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Sums over pairs by name, without a graph; and that of the loss."""
        batch = self.with_reference(model, batch)  # first, since it leaves nothing for a backward
        both = responses(model, batch)
        there = both.chosen.tokens * both.rejected.tokens > 0
        found = self.compare(both, batch)
        chosen, rejected = found.rewards
        margin = chosen - rejected
        values = {
            "pairs": torch.ones_like(margin),
            "loss": found.loss,
            "accuracy": (margin > 0).to(margin.dtype),
            "margin": margin,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
            "logp_chosen": both.chosen.logp,
            "logp_rejected": both.rejected.logp,
            **found.more,
        }
        sums = {name: one.where(there, 0).sum() for name, one in values.items()}
        return {name: one.detach() for name, one in sums.items()}, sums["loss"]


class References:
    """What a reference gives the examples of a store: starts: their first tokens, [examples].
    values: [examples, rows].
    """

    def __init__(self, starts: np.ndarray, values: np.ndarray) -> None:
        self.starts, self.values = starts, values

    def of(self, sample: Sample) -> np.ndarray | float:
        """Of its rows; 0 of a sample that only fills up a batch."""
        start = sample.pieces[0][0]
        at = int(np.searchsorted(self.starts, start))
        there = at < len(self.starts) and self.starts[at] == start
        return self.values[at] if there else 0.0


def responses(model: LanguageModel, batch: Batch) -> Both:
    """The responses of each pair, as a model has them."""
    tokens = (batch["targets"] != IGNORE_INDEX).sum(1)
    return paired(each_response(model, batch), tokens)


def each_response(model: LanguageModel, batch: Batch) -> Tensor:
    """The log-probability of each row's response, [rows]."""
    hidden = read(model, batch)
    return log_probs(hidden, head_of(model), batch["targets"]).sum(1)


def paired(logp: Tensor, tokens: Tensor) -> Both:
    """logp, tokens: [2 * pairs], of chosen and rejected ones in turn."""
    chosen, rejected = (Responses(logp[side::2], tokens[side::2]) for side in (0, 1))
    return Both(chosen, rejected)


def preferred(margin: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log of the probability that the first of two is preferred, whose reward is larger by
    `margin` (Bradley-Terry), where a label is wrong with probability `smoothing`.
    """
    loss = -F.logsigmoid(margin)
    return loss * (1 - smoothing) - F.logsigmoid(-margin) * smoothing if smoothing else loss
