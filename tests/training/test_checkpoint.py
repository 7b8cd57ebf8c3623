"""Checkpoints: what is in them, and which models they fit."""

from __future__ import annotations

import shutil

import pytest
import torch
from run_helpers import assert_bit_equal, folders, meta, step_of, stored, weights

from forge.rundir.checkpoints import CheckpointError
from forge.training.checkpoints.restore import load_checkpoint, load_run
from forge.training.loop import TrainState


def optimizer_state(loop) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value
        for name, p in loop.model.named_parameters()
        for key, value in loop.optimizer.state[p].items()
    }


def test_weights_and_optimizer_state_are_there_by_parameter_and_come_back(assembled):
    loop, other = assembled(), assembled("seed=1")
    loop.run()
    path = step_of(loop.run_dir, 6)
    assert meta(path)["train"] == TrainState(step=6, samples=24, tokens=384).state_dict()
    state = optimizer_state(loop)
    assert {key.rpartition("/")[2] for key in state} == {"step", "exp_avg", "exp_avg_sq"}
    by_name = {f"model/{name}": value for name, value in weights(loop.model).items()}
    assert_bit_equal(stored(path), by_name | {f"optimizer/{k}": v for k, v in state.items()})
    assert load_checkpoint(path, model=other.model, optimizer=other.optimizer) == {}
    assert_bit_equal(weights(other.model), weights(loop.model))
    assert_bit_equal(optimizer_state(other), state)


def test_keep_last_n(trained):
    often = "checkpoint.interval=2 checkpoint.async_mode=async train.max_steps=8"
    assert folders(trained(often, "checkpoint.keep_last_n=3")) == ["step_4", "step_6", "step_8"]


def test_exclude_from_loading_keeps_fresh_weights_and_optimizer_state(trained, assembled):
    source = trained("model.tie_embeddings=false")
    fresh = assembled("model.tie_embeddings=false seed=3")
    loop = assembled(
        f"model.tie_embeddings=false seed=3 train.max_steps=8 checkpoint.resume_from={source}",
        "checkpoint.exclude_from_loading=[output,blocks.1.]",
    )
    there, here = stored(step_of(source, 6), "model/"), weights(loop.model)
    excluded = {name for name in here if name.startswith(("output", "blocks.1."))}
    assert len(excluded) == 10
    new = weights(fresh.model)
    assert_bit_equal(here, there | {name: new[name] for name in excluded})
    state = loop.optimizer.state
    assert {name for name, p in loop.model.named_parameters() if state[p]} == set(here) - excluded
    loop.run()
    ages = {name: int(state[p]["step"].item()) for name, p in loop.model.named_parameters()}
    assert ages == {name: 2 if name in excluded else 8 for name in here}


FIX = "Choose the model it was trained with, or checkpoint.exclude_from_loading"
UNFIT = [
    (
        "model.ffn_hidden_dim=48",
        "blocks.0.feed_forward.w_gate.weight is (32, 16) there and (48, 16) here; .*"
        f"; and 1 more. {FIX}",
    ),
    ("model.n_layers=3", f"blocks.2.attention_norm.weight is missing there; .*{FIX}"),
    ("model.n_layers=1", f".*blocks.1.attention.wk.weight is missing here; .*{FIX}"),
    (
        "checkpoint.exclude_from_loading=[ouput]",
        "checkpoint.exclude_from_loading: no parameter of this model begins with 'ouput'",
    ),
]


@pytest.mark.ci("model.n_layers=3-said1")
@pytest.mark.parametrize(("options", "said"), UNFIT)
def test_another_model_is_refused_with_the_names(trained, assembled, options, said):
    said = said.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(CheckpointError, match=f"(^|does not fit this model: ){said}$"):
        assembled(f"checkpoint.resume_from={trained()}", options)


def test_a_checkpoint_needs_nothing_of_its_run(trained, tmp_path):
    run = trained()
    shutil.copytree(step_of(run, 6), tmp_path / "moved")
    expected = weights(load_run(run).model)
    shutil.rmtree(run)
    assert_bit_equal(weights(load_run(tmp_path / "moved").model), expected)
