"""Groups of equal rewards make room for others, and a reference that follows the weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import this_rank, world_of
from test_rollout_layouts import CPU, config_of, drawn, prepared, rollout

from forge.config.root import Config
from forge.parallel.ranks import Ranks
from forge.rollouts.advantages import degenerate
from forge.training.callbacks.reference_average import ReferenceAverage
from forge.training.models import build_model, build_objective
from forge.training.step_source import step_source

COARSE = (
    "rollout.stop=[] rollout.max_new_tokens=1 +rewards.signs.weight=0 "
    "+rewards.capital._target_=helpers.rollout_rewards.capital"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("refill")
    rows = [{"prompt": f"{number}: "} for number in range(40)]
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(config: Config, folder: Path, ranks: Ranks | None = None) -> Any:
    """The source of a run's steps, with its first weights."""
    ranks, data = ranks or Ranks(), prepared(folder)
    model = build_model(config, CPU, ranks)
    objective = build_objective(config, CPU, ranks, tokenizer=data.tokenizer)
    return step_source(
        config, data.train, model, objective, ranks, CPU, tokenizer=data.tokenizer, run_dir=None
    )


@cache
def rounds(folder: Path, count: int) -> tuple[dict[str, Any], list[Any]]:
    source = made(config_of(folder, f"{COARSE} objective.refill={count}"), folder)
    head, completions = source._make(1)
    return head, completions


def equal_groups(completions: list[Any]) -> list[bool]:
    return degenerate([row.reward for row in completions], 4).tolist()


def test_groups_of_equal_rewards_make_room_for_others(folder: Path) -> None:
    """Each round changes equal groups alone, and what is dropped is counted."""
    _, before = rounds(folder, 0)
    total = 0
    for count in (1, 2, 3):
        head, after = rounds(folder, count)
        was_equal = equal_groups(before)
        for group, equal in enumerate(was_equal):
            rows = slice(4 * group, 4 * group + 4)
            assert (drawn(before[rows]) == drawn(after[rows])) != equal
        total += sum(was_equal)
        assert len(head["dropped"]) == total
        before = after
    assert total
    assert sum(equal_groups(before)) < sum(equal_groups(rounds(folder, 0)[1]))


def test_what_was_dropped_is_logged(folder: Path) -> None:
    source = made(config_of(folder, f"{COARSE} objective.refill=2"), folder)
    means = next(source).means
    assert means["refill/groups_dropped"] == len(source.current[1]["dropped"]) > 0
    assert means["refill/reward_of_dropped"] in (0.0, 1.0) or means["refill/groups_dropped"] > 1


@pytest.mark.parametrize("layout", ["parallel.dp_shard=2"])
def test_layouts_refill_alike(layout: str, folder: Path) -> None:
    expected = drawn(rounds(folder, 2)[1])
    config = config_of(folder, f"{COARSE} objective.refill=2 {layout}")

    def work(rank: int) -> None:
        assert drawn(rollout(config, this_rank(config), folder)) == expected

    on_ranks(world_of(config), work)


@pytest.mark.parametrize("layout", ["", "parallel.dp_shard=2"])
def test_a_reference_that_follows_has_the_log_probs_of_the_weights(
    layout: str, folder: Path
) -> None:
    """Moved by its whole share it is the model; the layouts of both are the same."""
    moving = "objective.beta=0.1 objective.reference=ema objective.reference_mix=1"
    config = config_of(folder, f"{moving} {layout}")

    def work(rank: int) -> None:
        ranks = this_rank(config) if layout else Ranks()
        source = made(config, folder, ranks)
        model, objective = source.model, source.objective
        session: Any = SimpleNamespace(config=config, objective=objective, model=model)
        moves = ReferenceAverage(session)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        batch = ranks.own_batch(next(source).batches[0], objective.along_sequence, CPU)
        ours = objective.read(model, batch)[0].detach()
        assert (objective.read_reference(model, batch) - ours).abs().max() > 1e-3
        moves.move()
        assert (objective.read_reference(model, batch) - ours).abs().max() < 1e-6

    if layout:
        on_ranks(world_of(config), work)
    else:
        work(0)
