"""Completions to steps: rows of tokens, and the weight of each token by global counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forge.config.objectives.grpo import GRPO
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.noise import noise_of
from forge.objectives.grpo import OLD, REFERENCE, RETURNS, SAMPLED, SUPPORT, VALUES
from forge.rollouts.completion import Completion

ADVANTAGES = "advantages"


def weights_of(section: GRPO, rows: Sequence[Completion], max_new_tokens: int) -> list[float]:
    """Weight of each token of a row, for all rows of an update: the loss is their sum over tokens,
    divided by the number of learnt tokens.
    """
    tokens = learnt_tokens(rows)
    count = max(sum(row.learnt for row in rows), 1)
    by_row = {
        "token_mean": lambda length: 1.0,
        "sequence_mean": lambda length: tokens / (length * count),
        "sequence_sum": lambda length: tokens / count,
        "dr_grpo": lambda length: tokens / (count * max_new_tokens),
    }[section.aggregation]
    return [by_row(row.n_targets) if row.learnt else 0.0 for row in rows]


def learnt_tokens(rows: Sequence[Completion]) -> int:
    return sum(row.n_targets for row in rows if row.learnt)


def width_of(rows: Sequence[Completion], multiple: int, most: int) -> int:
    """Places of the longest row, rounded up to a multiple; multiple: 0 = `most`."""
    longest = max(len(row.prompt_ids) + len(row.ids) for row in rows) - 1
    return min(-(-longest // multiple) * multiple, most) if multiple else most


def collate(
    rows: Sequence[Completion],
    weights: Sequence[float],
    width: int,
    *,
    dtype: torch.dtype = torch.float32,
    noise: tuple[int, Sequence[int]] | None = None,
) -> Batch:
    """The fields of `forge.objectives.grpo.GRPO`, [rows, width], padded with tokens 0 without
    targets. noise: seed and numbers of the rows, for random numbers in training.
    """
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    targets = np.full_like(tokens, IGNORE_INDEX)
    fields = {"weights": np.zeros(tokens.shape)}
    has = {SAMPLED: "logprobs", OLD: "old", REFERENCE: "reference", VALUES: "values"}
    has |= {RETURNS: "returns", ADVANTAGES: "advantages"}
    names = [name for name, attribute in has.items() if rows and getattr(rows[0], attribute)]
    fields |= {name: np.zeros(tokens.shape) for name in names}
    for number, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        text = [*row.prompt_ids, *row.ids]
        begin, end = len(row.prompt_ids) - 1, len(text) - 1
        tokens[number, :end] = text[:-1]
        is_target = np.array(row.mask or [1] * len(row.ids), dtype=bool)
        targets[number, begin:end] = np.where(is_target, row.ids, IGNORE_INDEX)
        fields["weights"][number, begin:end] = weight * is_target
        for name in names:
            fields[name][number, begin:end] = getattr(row, has[name])
    batch = {"tokens": torch.from_numpy(tokens), "targets": torch.from_numpy(targets)}
    batch |= {name: torch.from_numpy(values).to(dtype) for name, values in fields.items()}
    if rows and rows[0].support:
        batch[SUPPORT] = torch.from_numpy(support_of(rows, targets))
    if ADVANTAGES not in batch:
        batch[ADVANTAGES] = torch.tensor([row.advantage for row in rows], dtype=dtype)
    if noise is not None:
        batch["noise"] = noise_of(noise[0], noise[1], width)
    return batch


def support_of(rows: Sequence[Completion], targets: np.ndarray) -> np.ndarray:
    """The ids that each target was drawn from, [rows, width, candidates]; -1 = none. A place
    without a target has token 0 alone.
    """
    most = max(len(ids) for row in rows for ids in row.support)
    support = np.full((*targets.shape, most), -1, dtype=np.int64)
    support[..., 0] = 0
    for number, row in enumerate(rows):
        for place, ids in enumerate(row.support, len(row.prompt_ids) - 1):
            if targets[number, place] != IGNORE_INDEX:
                support[number, place, : len(ids)] = ids
    return support
