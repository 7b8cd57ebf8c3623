"""Distillation computes the same on every layout, with a teacher of another size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import Tokens, config_of, this_rank, world_of

from forge.objectives.stored_teacher import IDS, LOGPS, Stored
from forge.parallel.ranks import Ranks
from forge.parity import side
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table
from forge.rundir.checkpoints import CheckpointError
from forge.training.models import build_objective

FP64 = torch.float64
SOFT = "objective.reverse_kl.value=0.2 objective.jsd.value=0.3 objective.tvd.value=0.1"
FEATURE = "objective.feature.value=0.5 objective.feature_layers=[0] model.dim=16 model.n_heads=2"
FEATURE += " model.n_kv_heads=2 model.head_dim=null"
CASES = [
    ("llama", "", "parallel.tp=2"),
    ("llama", FEATURE, "parallel.dp_shard=2 train.batch_size=2"),
    ("llama", "", "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"),
    ("llama", "", "parallel.dp_replicate=2 train.batch_size=1"),
    ("llama", FEATURE, "parallel.cp=2"),
    ("gemma2", "", "parallel.tp=2"),
    ("moe", "", "parallel.ep=2"),
    # The teacher is cut over tp, and the student is sharded or replicated.
    ("llama", "", "objective.teacher_tp=2 parallel.dp_shard=2 train.batch_size=2"),
    ("llama", "", "objective.teacher_tp=2 parallel.dp_replicate=2 train.batch_size=2"),
    ("llama", "", "objective.teacher_tp=2 parallel.dp_shard=4 train.batch_size=1"),
]
CI = [*CASES[:2], CASES[-3]]
STORED = [
    "parallel.tp=2",
    "parallel.dp_shard=2 train.batch_size=2",
    "parallel.cp=2",
    "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4",
]


class Text(Tokens):
    """A text that has a name, for what is stored of it."""

    fingerprint = "drawn"


def record(model: str, options: str, ranks: Ranks) -> Record:
    tokens = Text(vocab=300)
    return measure(config_of(model, options), ranks, tokens, dtype=FP64, steps=3, lr=0.05)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "more", "layout"),
    [pytest.param(*case, marks=[] if case in CI else pytest.mark.nightly) for case in CASES],
)
def test_a_layout_equals_one_device(model: str, more: str, layout: str, tiny_run: Path) -> None:
    options = f"objective=distill objective.teacher={tiny_run} {SOFT} {more} model.vocab_size=300"
    options += " objective.temperature.value=1.5"
    one = record(model, options, Ranks())
    assert len(set(one.losses)) == 3
    many = config_of(model, f"{options} {layout}")

    def work(rank: int) -> None:
        found = record(model, f"{options} {layout}", this_rank(many))
        if rank == 0:
            verdict = compare_records(one, found, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=[] if x == STORED[0] else pytest.mark.nightly) for x in STORED]
)
def test_stored_probabilities_on_a_layout_equal_one_device(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, tokens, k = np.random.default_rng(0), len(Text(vocab=300)), 5
    np.save(tmp_path / IDS, draw.random((tokens, 300)).argsort(1)[:, :k].astype(np.uint16))
    logps = np.log(draw.dirichlet(np.ones(k + 1), tokens))
    np.save(tmp_path / LOGPS, logps.astype(np.float32))
    build_objective = side.build_objective

    def with_stored(*args, **options):
        objective: Any = build_objective(*args, **options)
        objective.stored = {Text.fingerprint: Stored(tmp_path)}
        return objective

    monkeypatch.setattr(side, "build_objective", with_stored)
    options = f"objective=distill objective.offline={tmp_path} {SOFT} model.vocab_size=300"
    options += " objective.temperature.value=1.5"
    one = record("llama", options, Ranks())
    many = config_of("llama", f"{options} {layout}")

    def work(rank: int) -> None:
        found = record("llama", f"{options} {layout}", this_rank(many))
        if rank == 0:
            verdict = compare_records(one, found, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)


def test_a_teacher_that_cannot_be_cut_is_refused(tiny_run: Path) -> None:
    """It has two heads, and four ranks are to share them."""
    options = f"objective=distill objective.teacher={tiny_run} objective.teacher_tp=4"
    sizes = "model.vocab_size=300 parallel.dp_shard=4 train.batch_size=2"
    config = config_of("llama", f"{options} {sizes}")

    def work(rank: int) -> None:
        with pytest.raises(CheckpointError, match=r"n_heads \(2\) must be divisible"):
            build_objective(config, torch.device("cpu"), this_rank(config))

    on_ranks(4, work)
