"""The moving mean of the weights of train.ema_decay: against torch's AveragedModel and a sum."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import Train, trains
from run_helpers import assert_bit_equal, at_step, step_of, stored, weights
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import forge
from forge.merge.__main__ import main as merge
from forge.training.checkpoints.merging import Merged
from forge.training.checkpoints.restore import CheckpointError, load_run

export, evaluate, generate = (
    importlib.import_module(f"forge.{verb}").main for verb in ("export", "evaluate", "generate")
)
RANKS = ["--parallel", "fsdp2"]
MEAN = "parameters/WeightAverage/"
OPTIONS = (
    "train.ema_decay=0.9 eval.weights=ema train.max_steps=6 eval.enabled=true eval.interval=3 "
    "eval.steps=1 eval.sample_prompts=[the] eval.sample_tokens=2 checkpoint.interval=3 "
    "checkpoint.keep_last_n=0 scheduler.warmup_steps=2"
)


def test_the_mean_is_that_of_torch_and_is_evaluated_sampled_from_saved_and_loaded(assembled):
    loop, read = assembled(OPTIONS), []
    theirs: Any = AveragedModel(loop.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    means: dict[int, dict[str, torch.Tensor]] = {}

    def average(loop: Any) -> None:
        theirs.update_parameters(loop.model)
        means[loop.state.step] = weights(theirs.module)

    def note(*_: Any) -> None:
        if not loop.model.training:
            read.append((loop.state.step, weights(loop.model)))

    at_step(loop, None, average)
    hook = loop.model.norm.register_forward_hook(note)
    loop.run()
    hook.remove()
    assert {step for step, _ in read} == {3, 6}
    assert len(read) > 2, "of samples too"
    for step, values in read:
        assert_bit_equal(values, means[step])
        assert_bit_equal(stored(step_of(loop.run_dir, step), MEAN), means[step])
    assert_bit_equal(dict(load_run(loop.run_dir, weights="ema").model.named_parameters()), means[6])
    early = forge.load(loop.run_dir, step=3, weights="ema", device="cpu")
    assert_bit_equal(dict(early.model.named_parameters()), means[3])
    merged = Merged(step_of(loop.run_dir, 3), loop.config, "ema")
    assert_bit_equal({name: merged[name] for name in means[3]}, means[3])
    trained = stored(step_of(loop.run_dir, 6), "model/")
    assert_bit_equal(dict(load_run(loop.run_dir).model.named_parameters()), trained)
    plain = assembled(OPTIONS, "train.ema_decay=0 eval.weights=trained checkpoint.last=weights")
    plain.run()
    assert_bit_equal(weights(plain.model), weights(loop.model))
    with pytest.raises(CheckpointError, match=r"no moving mean of the weights; train\.ema_decay"):
        load_run(plain.run_dir, weights="ema")


def test_a_mean_begins_late_moves_seldom_and_grows_slow(assembled):
    """And a save of weights alone holds it."""
    late = "train.ema_start_step=3 train.ema_interval=2 train.ema_warmup=true train.max_steps=9"
    loop, seen = assembled(OPTIONS, late, "checkpoint.last=weights eval.enabled=false"), {}
    at_step(loop, None, lambda loop: seen.update({loop.state.step: weights(loop.model)}))
    loop.run()
    means = stored(step_of(loop.run_dir, 9), MEAN)
    for name, mean in means.items():
        expected = seen[4][name].double().numpy()
        for n, step in enumerate((6, 8), start=1):
            decay = min(0.9, (1 + n) / (10 + n))
            expected = decay * expected + (1 - decay) * seen[step][name].double().numpy()
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert not stored(step_of(loop.run_dir, 3), MEAN), "before its first step"


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.ci("fsdp2")
@pytest.mark.parametrize("layout", ["single", "fsdp2", "fsdp2 x tp2", "pp2"])
def test_a_mean_goes_on_and_is_cut_as_its_parameter(train, layout):
    options = ("train.ema_decay=0.8", "checkpoint.interval=3", "checkpoint.keep_last_n=0")
    whole = train("whole", layout, 6, *options)
    train("halted", layout, 3, *options)
    halted = train("halted", layout, 6, *options)
    for step in (3, 6):
        assert_bit_equal(stored(step_of(halted, step)), stored(step_of(whole, step)))
    means, values = (stored(step_of(whole, 6), below) for below in (MEAN, "model/"))
    assert means.keys() <= values.keys()
    assert not any(torch.equal(means[name], values[name]) for name in means)
    train("moved", layout, 3, *options)
    moved = train("moved", "single", 6, *options)
    for name, mean in stored(step_of(moved, 6), MEAN).items():
        torch.testing.assert_close(mean, means[name], rtol=1e-3, atol=1e-3)


def test_verbs_read_the_mean_on_one_device_and_on_ranks(assembled, tmp_path, capsys):
    """Export, generation and tasks, whose scores are those of a run with the mean for weights."""
    loop = assembled(OPTIONS, "eval.enabled=false eval.weights=trained")
    loop.run()
    run, mean = str(loop.run_dir), stored(step_of(loop.run_dir, 6), MEAN)
    file, out = tmp_path / "mean.safetensors", tmp_path / "mean"
    assert export([run, str(file), "--ema", "--dtype", "float32"]) == 0
    assert_bit_equal(load_file(file), mean)
    assert merge([run, str(out), "ema=true"]) == 0
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 4)
    scores = {}
    for name, words in {
        "trained": [run],
        "mean": [run, "eval.weights=ema"],
        "merged": [str(out)],
        "ranks": [run, "eval.weights=ema", "parallel.dp_shard=2"],
    }.items():
        capsys.readouterr()
        place = str(tmp_path / name)
        assert evaluate([*words, f"eval.data={text}", "--json", "--out", place]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        scores[name] = row["metrics"]["loss"]["value"]
    assert scores["mean"] == scores["merged"] != scores["trained"]
    assert scores["ranks"] == pytest.approx(scores["mean"], rel=1e-5)
    words, written = ["--prompt", "the", "--tokens", "8", "--temperature", "0", "--out"], []
    for n, line in enumerate(([run, "--ema"], [str(out)], [run, "--ema", *RANKS])):
        rows = tmp_path / f"{n}.jsonl"
        assert generate([*line, *words, str(rows)]) == 0
        written.append(json.loads(rows.read_text())["text"])
    assert len({*written}) == 1
