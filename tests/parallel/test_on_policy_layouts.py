"""On-policy distillation: which rows a student writes, what, and the updates made of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import this_rank, world_of
from safetensors.torch import save_file
from test_rollout_layouts import CPU, FP64, MODEL

from forge.compose import composition
from forge.config.root import Config
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Step
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table
from forge.training.data import plan_documents, prepared_text
from forge.training.models import build_model, build_objective
from forge.training.step_source import step_source

DATA = (
    "objective=gkd data=pairs data.path={folder}/rows.jsonl data.cache_dir={folder}/cache "
    "data.packing=none data.num_workers=0 data.val_fraction=0 eval=off "
    "objective.teacher={folder}/teacher.safetensors objective.max_new_tokens=10"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("on_policy")
    rows = [
        {"prompt": f"{n}+{n}=" + "?" * n, "response": f"{2 * n}." * (n % 4 + 1)} for n in range(24)
    ]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = composition.config(f"{MODEL} seed=9".split()).validate().config
    save_file(build_model(config, CPU, Ranks()).state_dict(), path / "teacher.safetensors")
    return path


def config_of(folder: Path, more: str = "") -> Config:
    words = f"{MODEL} {DATA.format(folder=folder)} {more}".split()
    return composition.config(words).validate().config


def text_of(config: Config) -> tuple[Any, Any]:
    prepared = prepared_text(config, lambda stage: None)
    plan = plan_documents(config, prepared.train, prepared.tokenizer, lambda stage: None)
    return plan, prepared.tokenizer


def steps_of(config: Config, count: int, ranks: Ranks | None = None, skip: int = 0) -> list[Step]:
    """Steps of a run whose weights stay as they begin."""
    ranks, (text, tokenizer) = ranks or Ranks(), text_of(config)
    model = build_model(config, CPU, ranks)
    objective = build_objective(config, CPU, ranks, tokenizer=tokenizer)
    source = step_source(
        config, text, model, objective, ranks, CPU, tokenizer=tokenizer, run_dir=None
    )
    source.load_state_dict({"samples": skip * 16})
    return [next(source) for _ in range(count)]


def rows_of(steps: list[Step]) -> list[tuple[list[int], list[int]]]:
    """The tokens and the targets of each row, without padding."""
    rows = []
    for batch in (batch for step in steps for batch in step.batches):
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            end = int((targets != IGNORE_INDEX).nonzero().max()) + 1
            rows.append((tokens[:end].tolist(), targets[:end].tolist()))
    return rows


def test_a_share_of_the_rows_is_written_by_the_student(folder: Path) -> None:
    """None at 0, all at 1, some at a half, and the others stay; each of them after its prompt."""
    text, half, all_ = (
        rows_of(steps_of(config_of(folder, f"objective.lmbda={share}"), 4)) for share in (0, 0.5, 1)
    )
    changed = [ours != theirs for ours, theirs in zip(half, text, strict=True)]
    assert 0.25 < sum(changed) / len(changed) < 0.75
    assert all(ours != theirs for ours, theirs in zip(all_, text, strict=True))
    for read, drawn in zip(text, all_, strict=True):
        begin = next(place for place, target in enumerate(read[1]) if target != IGNORE_INDEX)
        assert drawn[0][: begin + 1] == read[0][: begin + 1]
        assert drawn[1][:begin] == [IGNORE_INDEX] * begin
        assert drawn[1][begin:-1] == drawn[0][begin + 1 :], "each target is the next token"
        assert 0 < len(drawn[1]) - begin <= 10
        assert len(drawn[1]) <= 32


def test_what_is_written_is_the_students(folder: Path) -> None:
    """Nearly without temperature: the likeliest token of its logits, at every target."""
    config = config_of(folder, "objective.lmbda=1 objective.sampling_temperature=1e-4")
    model: Any = build_model(config, CPU, Ranks())
    n_ids = text_of(config)[1].vocab_size
    for tokens, targets in rows_of(steps_of(config, 1)):
        with torch.no_grad():
            best = model(torch.tensor([tokens]))[0, :, :n_ids].argmax(-1)
        learnt = torch.tensor(targets) != IGNORE_INDEX
        assert best[learnt].tolist() == torch.tensor(targets)[learnt].tolist()


def test_counts_are_those_of_the_rows(folder: Path) -> None:
    for step in steps_of(config_of(folder, "objective.lmbda=0.5 train.batch_size=4"), 3):
        learnt = [int((batch["targets"] != IGNORE_INDEX).sum()) for batch in step.batches]
        assert step.n_targets == sum(learnt)
        assert step.n_places == sum(batch["tokens"].numel() for batch in step.batches)
        assert step.n_tokens == sum(len(tokens) for tokens, _ in rows_of([step]))
        assert 0 < step.means["on_policy/rows"] < 16


def test_a_run_that_goes_on_draws_the_same(folder: Path) -> None:
    config = config_of(folder, "objective.lmbda=0.5")
    later = rows_of(steps_of(config, 2, skip=3))
    assert later == rows_of(steps_of(config, 5))[3 * 16 :]
    other = config_of(folder, "objective.lmbda=0.5 seed=1 data.shuffle_seed=0")
    assert rows_of(steps_of(other, 5))[3 * 16 :] != later


def record(folder: Path, more: str, ranks: Ranks) -> Record:
    config = config_of(folder, more)
    text, tokenizer = text_of(config)
    return measure(config, ranks, text, dtype=FP64, steps=4, lr=0.05, tokenizer=tokenizer)


@cache
def record_of_one(folder: Path, share: float) -> Record:
    return record(folder, f"objective.lmbda={share}", Ranks())


@pytest.mark.nightly
def test_a_share_of_0_is_distillation_from_text_to_the_bit(folder: Path) -> None:
    """Against a share so small that no row is drawn, and the whole way is gone."""
    text, none = record_of_one(folder, 0), record(folder, "objective.lmbda=1e-12", Ranks())
    assert text.losses == none.losses
    for name, weight in text.after.items():
        torch.testing.assert_close(none.after[name], weight, rtol=0, atol=0)
    assert text.losses != record_of_one(folder, 0.5).losses


LAYOUTS = [
    pytest.param("parallel.dp_shard=2", marks=pytest.mark.nightly),
    pytest.param("parallel.tp=2", marks=pytest.mark.nightly),
    pytest.param("parallel.tp=2 parallel.dp_shard=2", marks=pytest.mark.nightly),
    # Ranks whose rows are of different lengths share the teacher's layers.
    pytest.param("parallel.dp_shard=2 objective.teacher_tp=2", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_equal_those_of_one_device(layout: str, folder: Path) -> None:
    one, share = record_of_one(folder, 0.5), "objective.lmbda=0.5"
    many = config_of(folder, f"{share} {layout}")

    def work(rank: int) -> None:
        other = record(folder, f"{share} {layout}", this_rank(many))
        if rank == 0:
            verdict = compare_records(one, other, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)
