"""forge.merge: averages of checkpoints against numpy and torch's AveragedModel."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import assert_bit_equal, read, step_of, stored
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel

import forge
from forge.merge.__main__ import main as merge
from forge.training.checkpoints.restore import load_run

export = importlib.import_module("forge.export").main


def average(run: Path, shares: dict[int, float]) -> dict[str, Any]:
    every = {step: stored(step_of(run, step), "model/") for step in shares}
    total = sum(shares.values())
    return {
        name: sum(share / total * every[s][name].double().numpy() for s, share in shares.items())
        for name in every[min(shares)]
    }


@pytest.mark.parametrize(
    ("words", "shares"),
    [
        (["steps=[2,4,6]"], {2: 1, 4: 1, 6: 1}),
        (["steps=[6,2]", "weights=[3,1]"], {2: 1, 6: 3}),
        (["last=2", "weights=[0.2,0.8]"], {4: 0.2, 6: 0.8}),
    ],
)
def test_the_average_is_that_of_numpy(tiny_run, tmp_path, words, shares):
    assert merge([str(tiny_run), str(tmp_path / "out"), *words]) == 0
    averaged = stored(step_of(tmp_path / "out", max(shares)), "model/")
    for name, expected in average(tiny_run, shares).items():
        np.testing.assert_allclose(averaged[name].numpy(), expected, rtol=1e-7, atol=1e-9)


def test_an_average_is_loaded_evaluated_exported_and_trained_on(tiny_run, tmp_path, capsys):
    out, file = tmp_path / "out", tmp_path / "out.safetensors"
    assert merge([str(tiny_run), str(out), "steps=[2,4,6]"]) == 0
    assert "the weights of steps 2, 4, 6" in capsys.readouterr().out
    trained = [load_run(step_of(tiny_run, step), fp32=True) for step in (2, 4, 6)]
    theirs = AveragedModel(trained[0].model)
    for one in trained:
        theirs.update_parameters(one.model)
    mean = forge.load(out, device="cpu")
    for name, p in mean.model.named_parameters():
        other = theirs.module.get_parameter(name)
        torch.testing.assert_close(p, other, rtol=1e-6, atol=1e-7)
    single = forge.load(tiny_run, device="cpu").evaluate()
    assert mean.evaluate().keys() == single.keys()
    assert mean.evaluate() != single
    assert mean.generate("def ", max_new_tokens=3)
    assert export([str(out), str(file), "--dtype", "float32"]) == 0
    assert_bit_equal(load_file(file), stored(step_of(out, 6), "model/"))
    about = read(step_of(out, 6) / "meta.json")
    assert [source["step"] for source in about["merged"]["of"]] == [2, 4, 6]
    again = forge.compose(
        [f"run.dir={tmp_path / 'again'}", f"checkpoint.init_from={out}", *saved_options(tiny_run)]
    )
    forge.train(again)
    moved = load_run(tmp_path / "again", fp32=True).model
    norms = [model.get_parameter("norm.weight") for model in (moved, mean.model)]
    assert not torch.equal(*norms)


def saved_options(run: Path) -> list[str]:
    """The overrides of a run without its directory, for one more step."""
    overrides = read(run / "overrides.json")
    kept = [text for text in overrides if not text.startswith(("run.dir", "run.root", "train.max"))]
    return [*kept, "train.max_steps=1", "scheduler.warmup_steps=0", "run.inline=true"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which checkpoints"),
        (["steps=[2,3]"], "no usable checkpoint of step 3"),
        (["steps=[2,2]"], "a step twice"),
        (["steps=2"], "it must be a list of steps"),
        (["steps=[2]", "last=1"], "both say which checkpoints"),
        (["layers=[0,9]"], "layers=[0, 9]: the model has no layer 9; 0 to "),
        (["layers=[]"], "it must be a list of numbers of layers"),
        (["last=4"], "has 3 usable checkpoints: 2, 4, 6"),
        (["last=0"], "it must be a number of checkpoints"),
        (["last=2", "weights=[1,2,3]"], "it has 3 weights for 2 checkpoints"),
        (["last=2", "weights=[1,0]"], "it must be a list of numbers above 0"),
        (["step=[2]"], "forge.merge has no word 'step'"),
        (["ema=true"], "no moving mean of the weights"),
    ],
)
def test_a_wrong_line_is_refused_with_one_message(tiny_run, tmp_path, capsys, words, message):
    assert merge([str(tiny_run), str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_model_of_chosen_layers_computes_what_these_blocks_do(tiny_run, tmp_path, capsys):
    out = tmp_path / "deeper"
    assert merge([str(tiny_run), str(out), "layers=[1,0,1]"]) == 0
    assert "layers 1, 0, 1" in capsys.readouterr().out
    model = load_run(out, fp32=True).model
    teacher = load_run(tiny_run, fp32=True).model
    blocks = [teacher.blocks[i] for i in ("1", "0", "1")]
    teacher.blocks = torch.nn.ModuleDict({str(i): block for i, block in enumerate(blocks)})
    teacher.kinds = [teacher.kinds[i] for i in (1, 0, 1)]
    tokens = torch.arange(24).reshape(2, 12)
    torch.testing.assert_close(model(tokens), teacher(tokens), rtol=0, atol=0)
    assert read(step_of(out, 6) / "meta.json")["merged"]["layers"] == [1, 0, 1]


def test_a_run_is_not_written_over(tiny_run, tmp_path, capsys):
    assert merge([str(tiny_run), str(tiny_run), "last=2"]) == 2
    assert "a run is made in a new directory" in capsys.readouterr().err


def test_moving_means_are_averaged_and_written_as_weights(assembled, tmp_path):
    options = "train.ema_decay=0.9 train.max_steps=4 checkpoint.interval=2 eval.enabled=false"
    loop = assembled(options, "checkpoint.keep_last_n=0 scheduler.warmup_steps=2")
    loop.run()
    means = [stored(step_of(loop.run_dir, s), "parameters/WeightAverage/") for s in (2, 4)]
    assert merge([str(loop.run_dir), str(tmp_path / "last"), "ema=true"]) == 0
    assert_bit_equal(dict(load_run(tmp_path / "last").model.named_parameters()), means[1])
    assert merge([str(loop.run_dir), str(tmp_path / "both"), "ema=true", "last=2"]) == 0
    both = stored(step_of(tmp_path / "both", 4), "model/")
    for name, mean in means[0].items():
        expected = (mean.double() + means[1][name].double()) / 2
        torch.testing.assert_close(both[name].double(), expected, rtol=1e-7, atol=1e-9)
