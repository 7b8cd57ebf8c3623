"""Runs whose replicas train apart: gone on with to the bit, evaluated by the common weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.going_on_helpers import take
from layouts import Train, trains
from run_helpers import assert_bit_equal, built, logged, step_of, stored, weights

from forge.config.problems import ConfigError
from forge.rundir.checkpoints import CheckpointError
from forge.training.checkpoints.restore import load_run

INNER = "optimizer=adamw optimizer.lr=0.003 train.global_batch_size=8 checkpoint.interval=4"
APART = f"diloco=on diloco.sync_period=3 {INNER}"
FRAGMENTS = f"{APART} diloco.fragments=2 diloco.mixing=0.5 diloco.overlap_steps=2 optimizer=muon"
EVALUATED = "eval.enabled=true eval.interval=2 eval.steps=2"


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("replicas2", APART),
        ("replicas2 x fsdp2", FRAGMENTS),
        ("replicas2 x tp2", f"{APART} optimizer=muon"),
    ],
)
def test_a_run_goes_on_to_the_bit_in_the_middle_of_a_period(train, layout, options) -> None:
    run = train("run", layout, 7, options, EVALUATED)
    whole, curve = stored(step_of(run, 7)), logged(run, "eval/loss")
    for path in (step_of(run, 7), run / "result.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    train("run", layout, 7, options, EVALUATED)
    assert_bit_equal(stored(step_of(run, 7)), whole)
    assert logged(run, "eval/loss") == curve
    own = stored(step_of(run, 4), "replicas/model/")
    common = stored(step_of(run, 4), "model/")
    name = "blocks.0.attention.wq.weight"
    assert own[name].shape == (2, *common[name].shape)
    assert not torch.equal(own[name][0], own[name][1])
    assert not stored(step_of(run, 7), "replicas/model/"), "joined after the last step"
    if options == APART:  # not moved since step 3
        assert_bit_equal(dict(load_run(step_of(run, 4)).model.named_parameters()), common)
        assert curve[4] != curve[2]


@pytest.mark.nightly
def test_the_layout_inside_of_a_replica_may_change_and_the_number_of_replicas_not(train) -> None:
    run = train("run", "replicas2", 7, APART)
    curve = logged(run, "train/loss")
    for path in (step_of(run, 7), run / "result.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    train("run", "replicas2 x fsdp2", 7, APART, "train.batch_size=1")
    for step, loss in logged(run, "train/loss").items():
        assert loss == pytest.approx(curve[step], rel=1e-5), step
    words = f"run.dir={run} parallel.dp_replicate=4 parallel.dp_shard=1 {APART}".split()
    with pytest.raises(ConfigError, match=r"diloco\.replicas"):
        take(*words, f"data.path={run.parent / 'text.txt'}", "data=text")


def test_state_of_replicas_is_no_state_of_one(new_run) -> None:
    one = new_run("diloco=on diloco.sync_period=3 train.max_steps=4")
    built(one).run()
    step = step_of(one, 4)
    begun = f"checkpoint.init_from={step}"
    for asked in (f"checkpoint.resume_from={step}", f"{begun} checkpoint.init_optimizer=true"):
        with pytest.raises(CheckpointError, match="each replica of diloco=on has a"):
            built(new_run(asked, "train.max_steps=6"))
    loop = built(new_run("train.max_steps=6 diloco=on", begun))
    assert_bit_equal(weights(loop.model), stored(step, "model/"))


def test_one_replica_joined_to_the_mean_is_training_without_replicas(train) -> None:
    mean = "diloco.sync_period=1 diloco.outer_lr=1 diloco.outer_momentum=0"
    apart = train("apart", "single", 4, INNER, "diloco=on", mean)
    plain = train("plain", "single", 4, INNER)
    assert_bit_equal(stored(step_of(apart, 4), "model/"), stored(step_of(plain, 4), "model/"))
    assert logged(apart, "train/loss") == logged(plain, "train/loss")
