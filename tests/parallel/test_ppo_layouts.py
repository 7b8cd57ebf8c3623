"""PPO with a value head: the updates on every layout are those of one device."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from helpers.ranks import on_ranks
from parity_run import this_rank, world_of
from test_rollout_layouts import CPU, FP64, config_of, prepared

from forge.config.root import Config
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table
from forge.training.models import build_model

PPO = (
    "objective.advantage=gae objective.num_mini_batches=2 objective.num_iterations=2 "
    "objective.beta=0.1 objective.kl_in=reward objective.epsilon=0.01 objective.gamma=0.9 "
    "objective.lam=0.8 objective.cliprange_value=0.05 objective.vf_coef=0.5 "
    "objective.missing_eos_penalty=0.3"
)
NAME = "value_head.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ppo")
    words = ["a", "the sea", "x=1", "To be, or", "1 2 3", "ab" * 4]
    (path / "rows.jsonl").write_text("".join(json.dumps({"prompt": w}) + "\n" for w in words))
    return path


def record(folder: Path, more: str, ranks: Ranks) -> Record:
    config = config_of(folder, f"{PPO} {more}")
    data = prepared(folder)
    options = {"tokenizer": data.tokenizer, "dtype": FP64, "steps": 6, "lr": 0.05}
    return measure(config, ranks, data.train, **options)  # type: ignore[arg-type]


@cache
def record_of_one(folder: Path) -> Record:
    return record(folder, "", Ranks())


LAYOUTS = [
    pytest.param("parallel.dp_shard=2", marks=pytest.mark.nightly),
    "parallel.tp=2",
    pytest.param("parallel.tp=2 parallel.sequence_parallel=false", marks=pytest.mark.nightly),
    pytest.param("parallel.tp=2 parallel.dp_shard=2", marks=pytest.mark.nightly),
    pytest.param("parallel.dp_replicate=2", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_equal_those_of_one_device(layout: str, folder: Path) -> None:
    one, many = record_of_one(folder), config_of(folder, f"{PPO} {layout}")
    before, after = one.before[NAME], one.after[NAME]
    assert before is not None
    assert after is not None
    assert not before.any()
    assert after.abs().min() > 0

    def work(rank: int) -> None:
        other = record(folder, layout, this_rank(many))
        if rank == 0:
            verdict = compare_records(one, other, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)


@pytest.mark.nightly
def test_accumulation_changes_nothing(folder: Path) -> None:
    whole = record(folder, "train.batch_size=16", Ranks())
    verdict = compare_records(record_of_one(folder), whole, BOUNDS[FP64])
    assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])
    assert len(set(whole.losses)) == 6


def test_each_rank_has_its_part_of_the_head(folder: Path) -> None:
    config: Config = config_of(folder, f"{PPO} parallel.tp=2")

    def work(rank: int) -> None:
        model = build_model(config, CPU, this_rank(config))
        head = dict(model.named_parameters())[NAME]
        assert head.shape == (40,)
        assert head.to_local().shape == (20,)  # type: ignore[attr-defined]

    on_ranks(2, work)
