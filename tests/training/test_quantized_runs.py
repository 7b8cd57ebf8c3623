"""Runs whose products are quantized, or whose weights are sparse, from start to checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import Train, trains
from run_helpers import assert_bit_equal, logged, step_of, stored

from forge.planning.memory import memory_of
from forge.training.callback import Callback
from forge.training.callbacks.sparsity import Sparsity
from forge.training.checkpoints.restore import load_run

SHORT = "train.max_steps=8 checkpoint.interval=5 checkpoint.keep_last_n=0 eval.enabled=false "
SPARSE = "quantization=sparse quantization.min_dim=8 quantization.weight_sparsity_start_step=2 "
SPARSE += "quantization.weight_sparsity_update_step=4"
FP8 = "quantization=fp8 quantization.emulate=true quantization.min_dim=16"


@pytest.mark.ci("sparse")
@pytest.mark.parametrize("options", [SPARSE, FP8], ids=["sparse", "fp8"])
def test_a_run_that_goes_on_equals_one_that_never_stopped(trained, options: str) -> None:
    """Step 5 is between two choices of which weights are 0."""
    whole = trained(SHORT, options)
    resumed = trained(SHORT, options, f"checkpoint.resume_from={whole}/checkpoints/step_5")
    assert_bit_equal(stored(step_of(resumed, 8)), stored(step_of(whole, 8)))
    plain = trained(SHORT)
    ours, theirs = (stored(step_of(path, 8), "model/") for path in (whole, plain))
    assert ours.keys() == theirs.keys()
    assert not torch.equal(*(one["blocks.0.attention.wq.weight"] for one in (ours, theirs)))


class Recorder(Callback):
    """The weights that an update begins with, and their gradients, of each step."""

    def __init__(self) -> None:
        self.dense: list[dict[str, np.ndarray]] = []
        self.gradients: list[dict[str, np.ndarray]] = []

    def on_gradients(self, loop: Any) -> None:
        named = list(loop.model.named_parameters())
        self.dense.append({name: p.detach().numpy().copy() for name, p in named})
        self.gradients.append({name: p.grad.numpy().copy() for name, p in named})


def two_of_four(values: np.ndarray) -> np.ndarray:
    """Which of each 4 adjacent values of a row are the 2 largest."""
    made = np.zeros(values.shape, dtype=bool)
    for row in range(values.shape[0]):
        for start in range(0, values.shape[1], 4):
            block = np.abs(values[row, start : start + 4])
            made[row, start + np.argsort(-block, kind="stable")[:2]] = True
    return made


def test_sparse_weights_are_trained_as_if_they_were_not(assembled) -> None:
    """Dense weights move by signs of gradients that were taken at sparse ones; these are saved."""
    signs = "optimizer=lion optimizer.lr=0.01 optimizer.betas=[0,0] optimizer.weight_decay=0 "
    signs += "scheduler=constant scheduler.warmup_steps=0 checkpoint.interval=1"
    loop, recorder = assembled(SHORT, SPARSE, signs), Recorder()
    loop.callbacks.append(recorder)
    name, read = "blocks.0.attention.wq.weight", []
    weight = loop.model.get_submodule("blocks.0.attention.wq").weight
    loop.model.blocks["0"].register_forward_pre_hook(
        lambda *_: read.append(weight.detach().numpy().copy())
    )
    loop.run()
    made = len(read) // 8
    dense = [one[name] for one in recorder.dense]
    for before, gradient, after in zip(dense, recorder.gradients, dense[1:], strict=False):
        np.testing.assert_allclose(after, before - 0.01 * np.sign(gradient[name]), atol=1e-6)
    kept = {step: two_of_four(dense[step]) for step in (2, 6)}
    for step in range(1, 8):
        saved = stored(step_of(loop.run_dir, step), "model/")
        expected = dense[step] * kept[6 if step >= 6 else 2] if step >= 2 else dense[step]
        np.testing.assert_array_equal(saved[name].numpy(), expected)
        np.testing.assert_array_equal(read[step * made], expected, err_msg="what is multiplied")
    assert (kept[2] != kept[6]).any(), "nothing came back"
    sparsity = next(one for one in loop.callbacks if isinstance(one, Sparsity))
    tensors = [*sparsity.kept.values(), *sparsity.zeroed.values()]
    estimate = memory_of(loop.session.config).most("zeroed weights, masks")
    assert estimate == sum(tensor.nbytes for tensor in tensors)
    last = dict(load_run(loop.run_dir).model.named_parameters())[name]
    assert int((last != 0).sum()) == last.numel() // 2


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.nightly
def test_a_sparse_run_goes_on_in_other_layouts(train: Train) -> None:
    whole = train("whole", "single", 8, SPARSE)
    for layout, step in (("fsdp2", 3), ("single", 5), ("hsdp 2x2", 8)):
        path = train("travelling", layout, step, SPARSE)
    expected, found = logged(whole, "train/loss"), logged(path, "train/loss")
    assert list(found) == list(expected) == list(range(1, 9))
    off = {step: abs(found[step] - value) / value for step, value in expected.items()}
    assert max(off.values()) <= 1e-6, off
