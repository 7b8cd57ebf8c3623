"""A step of one rank of many in one process: what it holds and starts is as the plan says."""

from __future__ import annotations

from collections import Counter

import pytest

from forge import plan
from forge.compose import composition
from forge.config.model.decoder import Decoder
from forge.plan import ROUNDED
from forge.planning.sharding import held, in_small
from forge.planning.traffic import Rank
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import worked_out
from forge.training.dry_run import step_of

LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
EIGHT, MOE = "model=llama3_8b train.seq_len=8192", "model=mixtral_8x7b"
LAYOUTS = [
    f"{EIGHT} parallel.dp_shard=8 parallel.tp=8 plan.world_size=64 model.dropout=0.1",
    pytest.param(f"{EIGHT} parallel.dp_shard=1024 plan.world_size=1024", marks=pytest.mark.nightly),
    pytest.param(
        f"{EIGHT} parallel.dp_replicate=2 parallel.dp_shard=8 parallel.cp=4 plan.world_size=64",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        f"{MOE} parallel.dp_shard=8 parallel.ep=8 parallel.tp=2 plan.world_size=128",
        marks=pytest.mark.nightly,
    ),
    pytest.param(
        f"{EIGHT} parallel.dp_shard=2 parallel.pp=4 plan.world_size=8", marks=pytest.mark.nightly
    ),
]


@pytest.mark.parametrize("words", LAYOUTS)
def test_a_rank_of_many_holds_and_sends_what_the_plan_says(words: str) -> None:
    given = ["run.device=cuda", "plan.device=h200", "parallel.layout=given", *words.split()]
    config, _ = worked_out(composition.config(given), devices=LAPTOP)
    small = in_small(config)
    assert isinstance(small.model, Decoder)
    for stage in {0, config.parallel.pp - 1}:
        found = step_of(small, stage)
        assert found["held"] == held(small, stage).parameters
        expected: Counter[str] = Counter()
        for sent in Rank(small, small.model, stage).sent():
            expected[sent.kind] += sent.bytes
        if config.parallel.pp == 1:
            assert found["sent"].keys() == expected.keys()
            for kind, count in expected.items():
                assert found["sent"][kind] == pytest.approx(count, abs=ROUNDED)


@pytest.mark.nightly
def test_the_verb_says_so_and_minds_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    """With tp=8 and one shard every rank holds all norms: 0.02 % more than an equal share."""
    words = ["llama3_8b", "--device", "h200", "--gpus", "8", "parallel.tp=8", "--dry-run"]
    assert plan.main(words) == 0
    out, _ = capsys.readouterr()
    assert "all of it is as the plan says" in out
    assert "[128256, 4096]" not in out  # of a small model
    assert "holds 0.0% more than an equal share; plan.sharding_tolerance is 2.0%" in out
    assert plan.main([*words, "plan.sharding_tolerance=0"]) == 1
    assert "NOT as the plan says, or too much" in capsys.readouterr().out
