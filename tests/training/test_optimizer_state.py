"""The state of each optimizer in checkpoints: a run that continues equals one that never stopped,
to the bit in its own layout, and up to rounding in another.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import Train, trains
from run_helpers import assert_bit_equal, step_of, stored

OPTIMIZERS = {
    "adamw": "optimizer=adamw",
    "adamw_bf16": "optimizer=adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16",
    "adam_pax": "optimizer=adam_pax optimizer.eps_root=1e-8 optimizer.cautious=true",
    "lion": "optimizer=lion",
    "muon": "optimizer=muon",
    "normuon": "optimizer=normuon optimizer.momentum_start=0.85",
    "nanochat": "optimizer=nanochat optimizer.weight_decay_schedule=constant "
    "optimizer.momentum_end=null",  # of the horizon, which differs below until it continues
    "sgd": "optimizer=sgd optimizer.nesterov=true",
    "sgd_plain": "optimizer=sgd optimizer.momentum=0",
    "schedule_free": "optimizer=schedule_free_adamw optimizer.schedule_free_warmup_steps=4",
    "8bit": "optimizer=adamw_low_bit optimizer.state_format=8bit",
    "4bit": "optimizer=adamw_low_bit optimizer.state_format=4bit",
    "fp8": "optimizer=adamw_low_bit optimizer.state_format=fp8",
    "two": "optimizer=adamw_low_bit +optimizer.groups.tables={optimizer:schedule_free_adamw,"
    "roles:[embedding,head]} +optimizer.groups.vectors={optimizer:adamw,mu_dtype:bf16,"
    "roles:[norm]}",
}
WIDE = "model.dim=64 model.ffn_hidden_dim=128"
"""Matrices of 4096 values and more, which have moments of few bits."""
STOP, END = 3, 6
KINDS = {"adamw": {"step", "exp_avg", "exp_avg_sq"}, "lion": {"exp_avg"}, "sgd_plain": set()}
SAID = {
    "muon": KINDS["adamw"] | {"momentum_buffer"},
    "normuon": KINDS["adamw"] | {"momentum_buffer", "second_moment"},
    "nanochat": KINDS["adamw"] | {"momentum_buffer", "second_moment"},
    "sgd": {"momentum_buffer"},
    "schedule_free": {"step", "z", "exp_avg_sq", "weight_sum", "y"},
    "8bit": KINDS["adamw"]
    | {f"{name}.{part}" for name in ("exp_avg", "exp_avg_sq") for part in ("codes", "scale")},
}
ALL = [
    (name, layout) for name in OPTIMIZERS for layout in ("fsdp2 x tp2", "single", "fsdp2", "pp2")
]


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


@pytest.mark.ci("8bit-fsdp2")
@pytest.mark.parametrize(("optimizer", "layout"), ALL)
def test_a_run_goes_on_in_fresh_processes_as_if_it_had_never_stopped(train, optimizer, layout):
    """And in one process from there: what was saved of four ranks serves one."""
    options = (
        OPTIMIZERS[optimizer],
        WIDE,
        f"checkpoint.interval={STOP}",
        "checkpoint.keep_last_n=0",
    )
    whole = train("whole", layout, END, *options)
    train("halted", layout, STOP, *options)
    halted = train("halted", layout, END, *options)
    for step in (STOP, END):
        assert_bit_equal(stored(step_of(halted, step)), stored(step_of(whole, step)))
    state = stored(step_of(whole, END), "optimizer/")
    found = {key.rpartition("/")[2] for key in state}
    assert found == (KINDS | SAID).get(optimizer, found)
    if layout != "fsdp2 x tp2":
        return
    train("moved", layout, STOP, *options)
    moved = train("moved", "single", END, *options)
    ours, theirs = (stored(step_of(run, END), "model/") for run in (moved, whole))
    before = stored(step_of(whole, STOP), "model/")
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        change = (values - before[name]).norm()
        away = (ours[name] - values).norm() / change
        assert away < BOUNDS.get(optimizer, 1e-3), (name, away)


@pytest.mark.ci("single")
@pytest.mark.parametrize("layout", ["single", "fsdp2"])
def test_schedules_over_the_run_go_on_where_they_were(train, layout):
    """Momentum and weight decay are functions of the update's number alone."""
    options = ("optimizer=nanochat", f"checkpoint.interval={STOP}", "checkpoint.keep_last_n=0")
    whole = train("whole", layout, END, *options)
    resumed = train(
        "resumed", layout, END, *options, f"checkpoint.resume_from={step_of(whole, STOP)}"
    )
    assert_bit_equal(stored(step_of(resumed, END)), stored(step_of(whole, END)))


BOUNDS = {"8bit": 0.05, "two": 0.05, "4bit": 0.3, "fp8": 0.1, "lion": 0.1}
"""How far from the other layout the way of three steps may end: the signs of Lion are those of
rounding where a momentum is near 0, and moments are quantized again where rows are cut otherwise.
"""
