"""Targets that do not count: the loss by hand, and the same on every layout, though micro-batches
and ranks have very different numbers of targets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.ranks import on_ranks
from parity_run import LR, Tokens, config_of, this_rank, world_of

from forge.build import build
from forge.data import IGNORE_INDEX
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, verdict_table
from forge.training.data import train_loader
from forge.training.models import build_model

FP64 = torch.float64
LAYOUTS = [
    ("llama", "parallel.dp_shard=2"),
    ("llama", "parallel.dp_replicate=2 parallel.dp_shard=2 train.batch_size=2"),
    ("llama", "parallel.dp_shard=2 train.batch_size=1 train.global_batch_size=8"),
    ("llama", "parallel.tp=2"),
    ("llama", "parallel.tp=2 parallel.sequence_parallel=false"),
    ("llama", "parallel.cp=2"),
    ("llama", "parallel.cp=2 parallel.cp_method=ulysses"),
    ("llama", "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4"),
    ("llama", "parallel.tp=2 objective.loss_fn=chunked_cross_entropy objective.ce_chunk_size=5"),
    ("llama, z-loss, clipped", "parallel.dp_shard=2"),
    ("moe", "parallel.ep=2"),
    ("moe", "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"),
]


class Masked(Tokens):
    """Runs of tokens count, and runs as long do not."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Tokens()
        drawn = np.random.default_rng(1).integers(2, size=len(self) // 16)
        self.counted.ids = np.repeat(drawn, 16)


def record(model: str, layout: str, ranks: Ranks) -> Record:
    return measure(config_of(model, layout), ranks, Masked(), dtype=FP64, steps=3, lr=LR)


def test_the_loss_is_the_mean_over_the_targets_that_count() -> None:
    config = config_of("llama")
    model = build_model(config, torch.device("cpu"), Ranks(), FP64)
    objective = build(config.objective, path="objective")
    step = next(train_loader(config, Masked(), objective, Ranks(), torch.device("cpu")))
    counts = [int((batch["targets"] != IGNORE_INDEX).sum()) for batch in step.batches]
    assert len(set(counts)) > 1
    assert sum(counts) == step.n_targets < step.n_tokens == 8 * 16
    total = 0.0
    for batch in step.batches:
        logits = model(batch["tokens"])
        for row, column in (batch["targets"] != IGNORE_INDEX).nonzero().tolist():
            log_p = F.log_softmax(logits[row, column], -1)
            total -= log_p[batch["targets"][row, column]].item()
    first = record("llama", "", Ranks()).losses[0]
    assert first == pytest.approx(total / step.n_targets, rel=1e-12)


@pytest.mark.ci(
    "llama-parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4",
    "moe-parallel.ep=2",
)
@pytest.mark.parametrize(("model", "layout"), LAYOUTS)
def test_every_layout_equals_one_device(model, layout) -> None:
    config, one = config_of(model, layout), record(model, "", Ranks())

    def work(_: int) -> None:
        ranks = this_rank(config)
        many = record(model, layout, ranks)
        if ranks.main:
            verdict = compare_records(one, many, BOUNDS[FP64])
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(config), work)
