"""Rollouts are the same token for token on every layout and at every batch size, and so are the
updates made of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import this_rank, world_of

from forge.compose import composition
from forge.config.root import Config
from forge.data.preparing.cached import Prepared
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table
from forge.rollouts.completion import Completion
from forge.training.data import prepared_text
from forge.training.models import build_model, build_objective
from forge.training.step_source import step_source

FP64 = torch.float64
CPU = torch.device("cpu")
MODEL = (
    "tokenizer=bytes model.vocab_size=301 model.max_seq_len=40 model.dim=40 model.n_layers=3 "
    "model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden_dim=52 model.tie_embeddings=false "
    "model.init_std=0.2 train.seq_len=32 train.batch_size=4 train.global_batch_size=16 "
    "train.grad_clip_norm=0 precision=fp32 run.device=cpu"
)
ROLLOUT = (
    "objective=grpo data=prompts rollout.num_generations=4 rollout.max_new_tokens=20 "
    "rollout.batch_size=5 rollout.stop=[a,e,i,o,u,n,s,t,r,h] data.path={folder}/rows.jsonl "
    "data.cache_dir={folder}/cache "
    "+rewards.signs._target_=helpers.rollout_rewards.signs run.trust=[helpers.]"
)
STEPS = (
    "objective.num_mini_batches=2 objective.num_iterations=2 objective.beta=0.1 "
    "objective.clip=ppo objective.epsilon=0.01 objective.mismatch=token_truncate "
    "objective.entropy_bonus=0.01 objective.mask_truncated=true"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rollouts")
    words = ["a", "the sea", "x=1", "To be, or", "1 2 3", "ab" * 4]
    rows = [{"prompt": word, "answer": str(n)} for n, word in enumerate(words)]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_of(folder: Path, more: str = "") -> Config:
    words = f"{MODEL} {ROLLOUT.format(folder=folder)} {more}".split()
    return composition.config(words).validate().config


@cache
def prepared(folder: Path) -> Prepared:
    return prepared_text(config_of(folder), lambda stage: None)


def rollout(config: Config, ranks: Ranks, folder: Path) -> list[Completion]:
    """The second rollout of a run, in fp32, of its first weights."""
    data = prepared(folder)
    model = build_model(config, CPU, ranks)
    objective = build_objective(config, CPU, ranks, tokenizer=data.tokenizer)
    source = step_source(
        config, data.train, model, objective, ranks, CPU, tokenizer=data.tokenizer, run_dir=None
    )
    return source._make(1)[1]  # type: ignore[union-attr]


def drawn(completions: list[Completion]) -> list[Any]:
    return [[row.prompt_text, row.ids, row.finish, row.text, row.reward] for row in completions]


@cache
def on_one(folder: Path) -> list[Completion]:
    return rollout(config_of(folder), Ranks(), folder)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_batch_size_changes_nothing(folder: Path, size: int) -> None:
    completions = on_one(folder)
    lengths = {len(row.ids) for row in completions}
    assert len(lengths) > 4
    assert {row.finish for row in completions} == {"stop", "length"}
    other = rollout(config_of(folder, f"rollout.batch_size={size}"), Ranks(), folder)
    assert drawn(other) == drawn(completions)


def test_log_probs_are_those_of_a_forward_pass(folder: Path) -> None:
    """Of the sampler, token by token with a cache, and of the objective: whole rows."""
    config = config_of(folder, "rollout.temperature=0.7 objective.num_iterations=2")
    for row in rollout(config, Ranks(), folder):
        differences = [abs(a - b) for a, b in zip(row.logprobs, row.old, strict=True)]
        assert max(differences) < 1e-5
        assert max(row.logprobs) < 0


CUT = "rollout.top_k=7 rollout.top_p=0.9 rollout.temperature=0.7"


def test_cuts_are_those_of_the_loss(folder: Path) -> None:
    """Log-probabilities over the tokens drawn from, of the sampler and of the objective."""
    more = f"{CUT} objective.num_iterations=2 objective.beta=0.1"
    config = config_of(folder, more)
    rows = rollout(config, Ranks(), folder)
    sizes = {len(ids) for row in rows for ids in row.support}
    assert max(sizes) == 7
    assert len(sizes) > 3
    for row in rows:
        assert all(token in ids for token, ids in zip(row.ids, row.support, strict=True))
        assert row.logprobs == pytest.approx(row.old, abs=1e-5)
        # The reference is a copy of the first weights, over the same tokens.
        assert row.reference == pytest.approx(row.old, abs=1e-5)
    assert drawn(rollout(config_of(folder, f"{more} rollout.batch_size=1"), Ranks(), folder)) == (
        drawn(rows)
    )


LAYOUTS = [
    "parallel.dp_replicate=2",
    "parallel.dp_shard=2",
    "parallel.tp=2",
    "parallel.tp=2 parallel.dp_shard=2",
]
IN_CI = {"parallel.dp_shard=2", "parallel.tp=2"}
MARKED = [
    pytest.param(layout, marks=() if layout in IN_CI else pytest.mark.nightly) for layout in LAYOUTS
]


@pytest.mark.parametrize("layout", MARKED)
def test_layouts_draw_the_same(layout: str, folder: Path) -> None:
    expected, config = drawn(on_one(folder)), config_of(folder, layout)

    def work(rank: int) -> None:
        assert drawn(rollout(config, this_rank(config), folder)) == expected

    on_ranks(world_of(config), work)


@pytest.mark.nightly
def test_experts_on_other_ranks_answer_alike(folder: Path) -> None:
    moe = "model.moe.num_experts=4 model.moe.top_k=2 model.moe.ffn_hidden_dim=20"
    expected = drawn(rollout(config_of(folder, moe), Ranks(), folder))
    config = config_of(folder, f"{moe} parallel.ep=2")

    def work(rank: int) -> None:
        assert drawn(rollout(config, this_rank(config), folder)) == expected

    on_ranks(world_of(config), work)


def test_steps_with_cuts_equal_those_of_one_device(folder: Path) -> None:
    """With the vocabulary cut over tp, so that each rank has some of the tokens drawn from."""
    layout, one = "parallel.tp=2", record(folder, CUT, Ranks())
    many = config_of(folder, layout)

    def work(rank: int) -> None:
        other = record(folder, f"{CUT} {layout}", this_rank(many))
        if rank == 0:
            verdict = compare_records(one, other, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)


def record(folder: Path, more: str, ranks: Ranks) -> Record:
    data, config = prepared(folder), config_of(folder, f"{STEPS} {more}")
    options: dict[str, Any] = {"tokenizer": data.tokenizer, "dtype": FP64}
    return measure(config, ranks, data.train, steps=6, lr=0.05, **options)


@cache
def record_of_one(folder: Path) -> Record:
    return record(folder, "", Ranks())


def test_accumulation_changes_nothing(folder: Path) -> None:
    whole = record(folder, "train.batch_size=16", Ranks())
    verdict = compare_records(record_of_one(folder), whole, BOUNDS[FP64])
    assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])
    assert len(set(whole.losses)) == 6


@pytest.mark.parametrize("layout", MARKED)
def test_steps_equal_those_of_one_device(layout: str, folder: Path) -> None:
    """Three rollouts' worth of updates in fp64: two mini-batches, twice, with a reference."""
    one, many = record_of_one(folder), config_of(folder, layout)

    def work(rank: int) -> None:
        other = record(folder, layout, this_rank(many))
        if rank == 0:
            verdict = compare_records(one, other, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)
