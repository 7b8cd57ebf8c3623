"""The likeliest tokens of a teacher at each token of a text, in files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forge.data.batches.samples import Pieces

IDS, LOGPS = "ids.npy", "logps.npy"


class Stored:
    """Files of a text: ids, [tokens, k], and log-probabilities, [tokens, k + 1], the last of all
    other tokens together; of what follows each token. Pickles without the arrays.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getstate__(self) -> dict[str, Path]:
        return {"folder": self.folder}

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """ids and log-probabilities, mapped."""
        ids, logps = (np.load(self.folder / name, mmap_mode="r") for name in (IDS, LOGPS))
        return ids, logps

    def of(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """The rows of a sample's tokens but the last, a target only."""
        ids, logps = (
            np.concatenate([array[start:stop] for start, stop in pieces])[:-1]
            for array in self.arrays
        )
        return ids, logps

    @staticmethod
    def collated(rows: Sequence[tuple[Stored, Pieces]], width: int) -> dict[str, Tensor]:
        """The fields of a batch, padded with token 0 at probability 1."""
        k = rows[0][0].arrays[0].shape[1]
        ids = np.zeros((len(rows), width, k), dtype=np.int32)
        ids[:] = np.arange(k)
        logps = np.full((len(rows), width, k + 1), -1e4, dtype=np.float32)
        logps[:, :, 0] = 0.0
        for row, (stored, pieces) in enumerate(rows):
            of_ids, of_logps = stored.of(pieces)
            ids[row, : len(of_ids)], logps[row, : len(of_ids)] = of_ids, of_logps
        return {"teacher_ids": torch.from_numpy(ids), "teacher_logps": torch.from_numpy(logps)}
