"""Base of objectives on log-probabilities of whole responses."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forge.config.objectives.preference import Responses as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Sample, Samples
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.objectives.log_probs import log_probs
from forge.objectives.objective import Objective, hidden_of
from forge.objectives.whole_rows import whole_rows_of


class ResponseObjective(Objective):
    """Base of objectives on batches of `tokens` and `targets`, int64 [rows, seq]: for a sample all
    rows of the example, with a target for each token of a response.

    references: precomputed log-probabilities of each store of examples, by the store's fingerprint;
    batches then have `reference`, [rows].
    """

    section: Any

    def __init__(self, section: Section, **runtime: Any) -> None:
        super().__init__(section, **runtime)
        self.references: dict[str, References] = {}

    def reference(self, model: LanguageModel, batch: Batch) -> Tensor:
        """Log-probability of each row's response under the reference, [rows], without a graph."""
        if "reference" in batch:
            return batch["reference"]
        with ExitStack() as inside, torch.no_grad():
            reference_model: Any = self.models.get("reference", model)
            if self.section.reference == "adapter":
                inside.enter_context(self.without_adapter(reference_model))
                inside.enter_context(evaluating(reference_model))
            return each_response(reference_model, batch)

    def collate(self, samples: Samples) -> Batch:
        """Make all rows of each sample, padded with tokens 0 without targets."""
        rows = self.section.rows + self.section.rows_ahead
        tokens = np.zeros((len(samples) * rows, samples.width), dtype=np.int64)
        targets = np.full_like(tokens, IGNORE_INDEX)
        reference = np.zeros(len(tokens))
        for number, sample in enumerate(samples):
            for row, (window, counted) in enumerate(sample.rows, start=number * rows):
                assert counted is not None
                end = len(window) - 1
                tokens[row, :end], targets[row, :end] = window[:-1], window[1:]
                targets[row, :end][counted[1:] == 0] = IGNORE_INDEX
            if saved := self.references.get(sample.store.fingerprint if self.references else ""):
                reference[number * rows : (number + 1) * rows] = saved.of(sample)
        batch = {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}
        return batch | ({"reference": torch.from_numpy(reference)} if self.references else {})

    def count(self, samples: Samples) -> int:
        """Number of examples."""
        return len(samples)


class References:
    """Log-probabilities of a store's examples under the reference. starts: first token of each
    example, [examples]. values: [examples, rows], NaN for examples not read.
    """

    def __init__(self, starts: np.ndarray, values: np.ndarray) -> None:
        self.starts, self.values = starts, values

    def of(self, sample: Sample) -> np.ndarray | float:
        """Log-probabilities of a sample's rows; 0 for a sample that only fills up a batch."""
        start = sample.pieces[0][0]
        index = int(np.searchsorted(self.starts, start))
        exists = index < len(self.starts) and self.starts[index] == start
        assert not exists or not np.isnan(self.values[index]).any(), (
            f"no reference of example {index}"
        )
        return self.values[index] if exists else 0.0


def each_response(model: LanguageModel, batch: Batch) -> Tensor:
    """The log-probability of each row's response, [rows]."""
    hidden = hidden_of(model, batch)
    logp = log_probs(hidden, head_of(model), batch["targets"]).sum(1)
    return whole_rows_of(model).total(logp)


def summand_of_responses(model: LanguageModel, batch: Batch) -> Tensor:
    """As `each_response`, this rank's summand of a sum over ranks with parts of the rows."""
    return each_response(model, batch) * whole_rows_of(model).share
