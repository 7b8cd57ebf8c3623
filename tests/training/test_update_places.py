"""Updates in backward, of state on the host, and that clip: the same numbers as without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layouts import Train, trains
from run_helpers import assert_bit_equal, logged, step_of, stored
from test_update import as_step, decoder, global_batches, make_update

from forge.config.optimizers.adam import Adam as AdamConfig
from forge.config.optimizers.lion import Lion as LionConfig
from forge.config.optimizers.muon import Muon as MuonConfig
from forge.optim.adam import Adam
from forge.optim.lion import Lion
from forge.optim.muon import Muon

ADAMW = "optimizer=adamw optimizer.mu_dtype=bf16"
MASTERS = f"precision=fp32 precision.param_dtype=bf16 {ADAMW}"
LOW_BIT = "optimizer=adamw_low_bit model.dim=64 model.ffn_hidden_dim=128"
STOCHASTIC = f"{MASTERS} precision.stochastic_rounding=true"
ONE = "train.grad_clip_norm=0 train.grad_clip_value=0.01 train.global_batch_size=null"
ONE += " train.grad_accum_steps=1 train.batch_size=4"


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.parametrize(
    ("formats", "layout"),
    [
        ("optimizer=adamw", "single"),
        (STOCHASTIC, "fsdp2"),
        (STOCHASTIC.replace("precision=fp32", "precision=bf16"), "single"),
        pytest.param(MASTERS, "fsdp2 x tp2", marks=pytest.mark.nightly),
        pytest.param("optimizer=lion", "hsdp 2x2", marks=pytest.mark.nightly),
    ],
)
def test_an_update_in_backward_is_the_one_after_it(train, formats, layout):
    """Weights, state and norms of the gradient, which is clipped by value."""
    options = formats, ONE, "checkpoint.interval=3", "checkpoint.keep_last_n=0"
    after = train("after", layout, 3, *options)
    inside = train("inside", layout, 3, *options, "train.optimizer_in_backward=true")
    assert_bit_equal(stored(step_of(inside, 3)), stored(step_of(after, 3)))
    for key in ("train/loss", "train/grad_norm"):
        assert logged(inside, key) == pytest.approx(logged(after, key), rel=1e-12)


@pytest.mark.parametrize(
    ("formats", "layout"),
    [
        (MASTERS, "single"),
        pytest.param(LOW_BIT, "fsdp2", marks=pytest.mark.nightly),
        pytest.param("optimizer=adamw", "fsdp2 x tp2", marks=pytest.mark.nightly),
        pytest.param(STOCHASTIC, "pp2", marks=pytest.mark.nightly),
    ],
)
def test_state_on_the_host_gives_the_same_bits(train, formats, layout):
    """Also of a run that continues."""
    options = formats, "checkpoint.interval=2", "checkpoint.keep_last_n=0"
    here = train("here", layout, 4, *options)
    train("there", layout, 2, *options, "parallel.offload_optimizer=true")
    there = train("there", layout, 4, *options, "parallel.offload_optimizer=true")
    for step in (2, 4):
        assert_bit_equal(stored(step_of(there, step)), stored(step_of(here, step)))


MAKE = {
    "adam": lambda p: Adam(p, AdamConfig(lr=0.01, betas=(0.9, 0.99), weight_decay=0.0)),
    "lion": lambda p: Lion(p, LionConfig(lr=0.01, betas=(0.9, 0.99), weight_decay=0.0)),
    "muon": lambda p: Muon(
        [{"params": [one for one in p if one.ndim == 2], "lr": 0.01}], MuonConfig()
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_an_update_that_clips_is_that_of_clipped_gradients(kind):
    found = []
    for folds in (False, True):
        model = decoder(torch.float32)
        update = make_update(model, MAKE[kind](list(model.parameters())), clip=0.05)
        norms = []
        for number, batch in enumerate(global_batches(masked=False)):
            output = update.gradients(as_step(*batch, 1), number, read=not folds)
            assert (output.factor is not None) == folds
            norms.append(output.grad_norm)
            update.apply(output, number)
        assert max(norms) > 0.05
        found.append([*norms, *(p.detach() for p in model.parameters())])
    assert all(map(torch.equal, *found))
