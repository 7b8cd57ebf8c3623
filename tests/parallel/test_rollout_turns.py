"""Completions of several turns: the same on every layout, with replies that are never learnt."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import this_rank, world_of
from test_rollout_layouts import CPU, FP64, config_of, drawn, prepared, rollout

from forge.parallel.ranks import Ranks
from forge.rollouts.completion import Completion
from forge.training.models import build_model, build_objective
from forge.training.step_source import step_source

TURNS = (
    "+environment._target_=helpers.rollout_rewards.Capitals +environment.max_turns=2 "
    "+environment.max_reply=4 rollout.stop=[]"
)
TWICE = "objective.num_iterations=2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("turns")
    rows = [{"prompt": word} for word in ["a", "the sea", "x=1", "To be, or", "1 2 3", "ab" * 4]]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@cache
def on_one(folder: Path) -> list[Completion]:
    return rollout(config_of(folder, f"{TURNS} {TWICE}"), Ranks(), folder)


def drawn_in_turns(rows: list[Completion]) -> list[Any]:
    return [*drawn(rows), [[row.mask, row.turns, row.rewards] for row in rows]]


def replies(row: Completion) -> list[list[int]]:
    """The tokens of each reply, in order."""
    parts: list[list[int]] = [[]]
    for token, mask in zip(row.ids, row.mask, strict=True):
        if mask:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def test_replies_are_what_the_environment_answers(folder: Path) -> None:
    completions, tokenizer = on_one(folder), prepared(folder).tokenizer
    assert {row.finish for row in completions} == {"stop", "length", "turns"}
    assert {row.turns for row in completions} == {1, 2}
    assert tokenizer is not None
    for row in completions:
        for number, ids in enumerate(replies(row), 1):
            text = tokenizer.decode(ids)
            assert text[:3] == f"[{number}{str(row.prompt_text)[:1]}"
            assert len(ids) == 4
        assert len(row.ids) == len(row.mask) <= 20
        assert row.reward == sum(value for value in row.rewards.values() if value is not None)
    rewards = [row.rewards["environment"] for row in completions]
    assert None in rewards
    assert 0.25 in rewards


def test_log_probs_are_those_of_a_forward_pass(folder: Path) -> None:
    for row in on_one(folder):
        for ours, other, mask in zip(row.logprobs, row.old, row.mask, strict=True):
            assert abs(ours - other) < 1e-5
            assert (ours < 0) == bool(mask)


@pytest.mark.parametrize("size", [1, 16])
def test_batch_size_changes_nothing(folder: Path, size: int) -> None:
    config = config_of(folder, f"{TURNS} {TWICE} rollout.batch_size={size}")
    assert drawn_in_turns(rollout(config, Ranks(), folder)) == drawn_in_turns(on_one(folder))


@pytest.mark.parametrize("layout", ["parallel.dp_shard=2", "parallel.tp=2"])
def test_layouts_draw_the_same(layout: str, folder: Path) -> None:
    expected = drawn_in_turns(on_one(folder))
    config = config_of(folder, f"{TURNS} {TWICE} {layout}")

    def work(rank: int) -> None:
        assert drawn_in_turns(rollout(config, this_rank(config), folder)) == expected

    on_ranks(world_of(config), work)


def test_the_gradient_is_that_of_the_tokens_of_the_model(folder: Path) -> None:
    """Against -A log p summed by hand over each row's own tokens, from the logits of texts."""
    config, data = config_of(folder, f"objective=reinforce {TURNS}"), prepared(folder)
    model: Any = build_model(config, CPU, Ranks(), FP64)
    objective = build_objective(config, CPU, Ranks(), tokenizer=data.tokenizer, dtype=FP64)
    source: Any = step_source(
        config, data.train, model, objective, Ranks(), CPU, tokenizer=data.tokenizer, run_dir=None
    )
    step = next(source)
    rows = source.current[2]
    total, count = torch.zeros((), dtype=FP64), 0
    for row in rows:
        text = torch.tensor([[*row.prompt_ids, *row.ids]])
        logp = model(text).double().log_softmax(-1)[0]
        for place, (token, mask) in enumerate(zip(row.ids, row.mask, strict=True)):
            if mask:
                total = total - row.advantage * logp[len(row.prompt_ids) + place - 1, token]
                count += 1
    loss = torch.stack([objective(model, batch).total for batch in step.batches]).sum()
    assert step.n_targets == count < sum(len(row.ids) for row in rows)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(value, parameters) for value in (loss, total))
    for one, other in zip(ours, theirs, strict=True):
        assert other.norm() > 0
        assert (one - other).norm() <= 1e-10 * other.norm()
