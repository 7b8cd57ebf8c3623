"""A run that goes on from a checkpoint equals one that never stopped, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import assert_bit_equal, meta, stored

MID_EPOCH = (
    "train.batch_size=40",
    "train.max_steps=12",
    "checkpoint.interval=5",
    "checkpoint.keep_last_n=0",
)
EVALUATE = (
    "eval.enabled=true",
    "eval.interval=2",
    "eval.steps=3",
    "eval.patience=5",
    "eval.min_delta=9",
    "eval.sample_tokens=0",
)


def metrics(run_dir: Path, *, after: int) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"] > after]


def assert_same_end(resumed: Path, whole: Path, *, after: int, last: int) -> None:
    assert metrics(resumed, after=0) == metrics(whole, after=after) != []
    ours, theirs = (path / "checkpoints" / f"step_{last}" for path in (resumed, whole))
    assert any(name.startswith("optimizer/") for name in stored(ours))
    assert_bit_equal(stored(ours), stored(theirs))
    assert meta(ours) == meta(theirs)


def worker_process(run_dir: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "forge.worker", str(run_dir)],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_in_a_fresh_process_with_loader_processes(
    trained: Callable[..., Path], new_run: Callable[..., Path]
) -> None:
    whole = trained(*MID_EPOCH, *EVALUATE)
    resumed = new_run(
        *MID_EPOCH,
        *EVALUATE,
        "data.num_workers=2",
        f"checkpoint.resume_from={whole}/checkpoints/step_5",
    )
    worker_process(resumed)
    assert_same_end(resumed, whole, after=5, last=10)


@pytest.mark.parametrize(
    "options",
    [
        ("train.grad_accum_steps=2",),
        ("train.activation_checkpointing=selective", "objective.loss_fn=chunked_cross_entropy"),
        ("checkpoint.async_mode=async", "data.num_workers=2"),
        ("run.deterministic=true", "optimizer.fused=false"),
        ("scheduler=wsd", "scheduler.warmup_steps=7"),
    ],
    ids=" ".join,
)
def test_with_options(trained: Callable[..., Path], options: tuple[str, ...]) -> None:
    whole = trained(*MID_EPOCH, *EVALUATE, *options)
    resumed = trained(
        *MID_EPOCH, *EVALUATE, *options, f"checkpoint.resume_from={whole}/checkpoints/step_5"
    )
    assert_same_end(resumed, whole, after=5, last=10)


def test_the_loss_scale_of_fp16_goes_on(trained: Callable[..., Path]) -> None:
    """The first updates overflow and are skipped: without the scale the run would skip again."""
    options = (
        "precision=fp16",
        f"precision.init_loss_scale={2.0**24}",
        "train.max_steps=10",
        "checkpoint.interval=5",
    )
    whole = trained(*options, "checkpoint.keep_last_n=0")
    scales = [
        json.loads((whole / f"checkpoints/step_{step}/meta.json").read_text())["scaler"]["scale"]
        for step in (5, 10)
    ]
    assert scales[0] < 2.0**24
    resumed = trained(*options, f"checkpoint.resume_from={whole}/checkpoints/step_5")
    assert_same_end(resumed, whole, after=5, last=10)


def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(trained: Callable[..., Path]) -> None:
    """With the same schedule; the final evaluation of the shorter run leaves no trace in the
    patience of the longer one.
    """
    fixed = (*EVALUATE, "scheduler.decay_steps=8", "checkpoint.interval=100")
    whole = trained(*fixed, "train.max_steps=8")
    short = trained(*fixed, "train.max_steps=5")
    assert 5 in [line["step"] for line in metrics(short, after=0) if "eval/loss" in line]
    resumed = trained(*fixed, "train.max_steps=8", f"checkpoint.resume_from={short}")
    assert_same_end(resumed, whole, after=5, last=8)
