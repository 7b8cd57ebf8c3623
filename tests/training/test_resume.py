"""A run that resumes from a checkpoint equals one that never stopped, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import assert_bit_equal, meta, read, step_of, stored

from forge.rundir.files import read_rows

MID_EPOCH = "train.batch_size=40 train.max_steps=12 checkpoint.interval=5 checkpoint.keep_last_n=0"
EVALUATE = "eval.enabled=true eval.interval=2 eval.steps=3 eval.patience=5 eval.min_delta=9 "
EVALUATE += "eval.sample_tokens=0"


def metrics(run_dir: Path, *, after: int = 0) -> list[dict[str, float]]:
    return [row for row in read_rows(run_dir / "metrics.jsonl") if row["step"] > after]


def assert_same_end(resumed: Path, whole: Path, *, after: int = 5, last: int = 10):
    assert metrics(resumed) == metrics(whole, after=after) != []
    ours, theirs = (step_of(path, last) for path in (resumed, whole))
    assert any(name.startswith("optimizer/") for name in stored(ours))
    assert_bit_equal(stored(ours), stored(theirs))
    assert meta(ours) == meta(theirs)


def test_in_a_fresh_process_with_loader_processes(trained, new_run):
    whole = trained(MID_EPOCH, EVALUATE)
    more = f"data.num_workers=2 checkpoint.resume_from={whole}/checkpoints/step_5"
    resumed = new_run(MID_EPOCH, EVALUATE, more)
    words = [sys.executable, "-m", "forge.worker", str(resumed)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert_same_end(resumed, whole)


SFT = (
    "objective=sft objective.weighting=example objective.neftune_alpha=5 model.dropout=0.2 "
    "data.pack_sequences=true"
)
LORA = "adapter=lora adapter.rank=2 adapter.dropout=0.1 adapter.dora=true optimizer=adamw"
OPTIONS = [
    "train.grad_accum_steps=2",
    "train.activation_checkpointing=selective objective.loss_fn=chunked_cross_entropy",
    "checkpoint.async_mode=async data.num_workers=2",
    "run.deterministic=true optimizer.fused=false",
    "scheduler=wsd scheduler.warmup_steps=7",
    pytest.param(SFT, id="sft"),
    pytest.param(f"{SFT} {LORA}", id="sft, lora"),
    pytest.param("optimizer.trainable_parameters=[wq,norm]", id="a part"),
]


@pytest.mark.ci("train.grad_accum_steps=2", "sft")
@pytest.mark.parametrize("options", OPTIONS)
def test_with_options(trained, options):
    whole = trained(MID_EPOCH, EVALUATE, options)
    source = f"checkpoint.resume_from={whole}/checkpoints/step_5"
    assert_same_end(trained(MID_EPOCH, EVALUATE, options, source), whole)


@pytest.mark.nightly
def test_the_loss_scale_of_fp16_goes_on(trained):
    """The first updates overflow and are skipped: without the scale the run would skip again."""
    options = f"precision=fp16 precision.init_loss_scale={2.0**24} train.max_steps=10 "
    options += "checkpoint.interval=5 checkpoint.keep_last_n=0"
    whole = trained(options)
    assert read(step_of(whole, 5) / "meta.json")["scaler"]["scale"] < 2.0**24
    assert_same_end(trained(options, f"checkpoint.resume_from={step_of(whole, 5)}"), whole)


@pytest.mark.nightly
def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(trained):
    """With the same schedule; the final evaluation of the shorter run leaves no trace in the
    patience of the longer one.
    """
    fixed = f"{EVALUATE} scheduler.decay_steps=8 checkpoint.interval=100"
    whole, short = trained(fixed, "train.max_steps=8"), trained(fixed, "train.max_steps=5")
    assert 5 in [row["step"] for row in metrics(short) if "eval/loss" in row]
    resumed = trained(fixed, f"train.max_steps=8 checkpoint.resume_from={short}")
    assert_same_end(resumed, whole, last=8)
