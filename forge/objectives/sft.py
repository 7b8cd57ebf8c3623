"""Supervised fine-tuning on the marked tokens of examples."""

from __future__ import annotations

import numpy as np
import torch

from forge.config.objectives.base import SFT as SFTConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Samples
from forge.objectives.next_token import kept_of
from forge.objectives.pretrain import CrossEntropy


class SFT(CrossEntropy):
    """Cross-entropy of the marked tokens, weighted equally by token or by example.

    An example is a document where documents are kept apart, else a row. With weighting=example a
    batch has `weights`, float32 [batch, seq], 1 / targets of the example, and the loss of a step is
    divided by the number of examples. With NEFTune a batch has `jitter`, float32 [batch, seq],
    alpha / sqrt(tokens of the example).
    """

    section: SFTConfig
    along_sequence = ("tokens", "targets", "weights")

    def collate(self, samples: Samples) -> Batch:
        batch, alpha = super().collate(samples), self.section.neftune_alpha
        by_example = self.section.weighting == "example"
        if not (alpha or by_example):
            return batch
        targets = batch["targets"].numpy()
        numbers = batch["documents"].numpy() if "documents" in batch else np.zeros_like(targets)
        weights = np.zeros(targets.shape, dtype=np.float32)
        jitter = np.zeros_like(weights)
        for row, sample in enumerate(samples):
            end = sum(stop - start for start, stop in sample.pieces) - 1
            row_numbers, counted = numbers[row, :end], targets[row, :end] != IGNORE_INDEX
            if end and alpha:
                jitter[row, :end] = alpha * np.bincount(row_numbers)[row_numbers] ** -0.5
            if end and by_example:
                shared = np.bincount(row_numbers, counted)[row_numbers]
                weights[row, :end] = counted / np.maximum(shared, 1)
        if alpha:
            batch["jitter"] = torch.from_numpy(jitter)
        if by_example:
            batch["weights"] = torch.from_numpy(weights)
        return batch

    def count(self, samples: Samples) -> int:
        if self.section.weighting == "token":
            return super().count(samples)
        per_sample = (kept_of(sample, samples.end_of_text) for sample in samples)
        return sum(len(np.unique(numbers[is_target])) for is_target, numbers in per_sample)
