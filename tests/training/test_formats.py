"""Runs whose weights are in 16 bits: with masters, and rounded stochastically."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layouts import Train, trains
from run_helpers import assert_bit_equal, logged, step_of, stored

BF16 = "precision=fp32 precision.param_dtype=bf16"
SR = f"{BF16} precision.stochastic_rounding=true"
MOMENTS = "optimizer=adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16"
WIDE = "model.dim=64 model.ffn_hidden_dim=128"
FORMATS = {
    "masters": f"{BF16} optimizer=adamw",
    "stochastic": f"{SR} {MOMENTS}",
    "8bit": f"{SR} optimizer=adamw_low_bit {WIDE}",
    "muon": f"{SR} optimizer=muon",
    "muon masters": f"{BF16} optimizer=muon",
    "lion": f"{SR} optimizer=lion",
}
STOP, END = 2, 4
IN_CI = {("masters", "fsdp2"), ("stochastic", "single"), ("muon", "fsdp2 x tp2")}


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.ci("stochastic-single")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=[] if (name, layout) in IN_CI else [pytest.mark.nightly])
        for name in FORMATS
        for layout in ("single", "fsdp2", "fsdp2 x tp2", "pp2")
    ],
)
def test_a_run_goes_on_as_if_it_had_never_stopped(train, name, layout):
    options = (FORMATS[name], f"checkpoint.interval={STOP}", "checkpoint.keep_last_n=0")
    whole = train("whole", layout, END, *options)
    train("halted", layout, STOP, *options)
    halted = train("halted", layout, END, *options)
    for step in (STOP, END):
        assert_bit_equal(stored(step_of(halted, step)), stored(step_of(whole, step)))
    kept = {values.dtype for values in stored(step_of(whole, END), "model/").values()}
    assert kept == {torch.float32 if "masters" in name else torch.bfloat16}
    losses = logged(whole, "train/loss")
    assert losses[END] < losses[1]


@pytest.mark.ci("masters")
@pytest.mark.parametrize("name", ["masters", "stochastic"])
def test_initial_weights_and_what_is_rounded_are_those_of_any_layout(train, name):
    """The start is drawn in fp32 and rounded; later a weight is another one only where gradients
    are, which fsdp2 adds up in another order: a bit of one is that of a neighbour in bf16.
    """
    same = "optimizer.lr=0.01 train.grad_clip_norm=0 train.global_batch_size=4 train.batch_size=2"
    options = FORMATS[name], "checkpoint.interval=1", "checkpoint.keep_last_n=0", same
    still = "checkpoint.interval=1 optimizer=adamw optimizer.lr=1e-30"
    exact = train("fp32", "single", 1, "precision=fp32", same, still)
    reference = stored(step_of(exact, 1), "model/")
    begun = train("start", "fsdp2 x tp2", 1, *options, still)
    start = stored(step_of(begun, 1), "model/")
    for key, values in start.items():
        assert torch.equal(values, reference[key].to(values.dtype)), key
    one, two = (train(layout, layout, 3, *options) for layout in ("single", "fsdp2"))
    found = [stored(step_of(run, 3), "model/") for run in (one, two)]
    for key, values in found[0].items():
        away = (values.float() != found[1][key].float()).double().mean()
        assert away < 0.02, (key, away)


@pytest.mark.nightly
def test_a_run_moves_between_formats(train):
    """What an fp32 run saved becomes the masters, and the masters the weights in fp32."""
    options = "optimizer=adamw", "checkpoint.interval=1", "checkpoint.keep_last_n=0"
    allowed = "run.allow_change=[precision,optimizer]"
    run = train("moved", "single", 2, "precision=fp32", *options)
    before = stored(step_of(run, 2))
    train("moved", "fsdp2", 3, BF16, *options, allowed, "optimizer.lr=1e-30")
    with_masters = stored(step_of(run, 3))
    assert with_masters.keys() == before.keys()
    for key, values in before.items():
        if key.startswith("model/"):
            assert torch.equal(with_masters[key], values)
    train("moved", "single", 4, "precision=fp32", *options, allowed, "optimizer.lr=1e-30")
    back = stored(step_of(run, 4), "model/")
    assert_bit_equal(back, {k[6:]: v for k, v in with_masters.items() if k.startswith("model/")})
    train("moved", "single", 5, SR, *options, allowed, "optimizer.lr=1e-30")
    for key, values in stored(step_of(run, 5), "model/").items():
        assert values.dtype == torch.bfloat16
        assert torch.equal(values, back[key].bfloat16())
