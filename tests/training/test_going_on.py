"""What a run says when it takes up a checkpoint, is interrupted, or goes wrong."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.generate import main as generate
from forge.training.assemble import Parts
from forge.training.summary import summary


def test_says_where_it_goes_on(
    trained: Callable[..., Path],
    assembled: Callable[..., Parts],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = trained()
    parts = assembled("train.max_steps=9", f"checkpoint.resume_from={first}")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        f"going on from {first}/checkpoints/step_6 at step 6, where it "
        f"stopped in the data: 3 steps to go"
    )
    assert parts.loop.loader.samples == 24


def test_a_finished_run_says_how_to_train_longer(assembled: Callable[..., Parts]) -> None:
    parts = assembled()
    parts.loop.run()
    last = summary(parts, "end", parts.loop.run_dir).splitlines()[-1]
    assert (
        last == f"  goes on with     python -m forge.resume {parts.loop.run_dir} train.max_steps=12"
    )


def test_weights_that_are_not_finite(
    trained: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.WARNING):
        path = trained(
            "optimizer.lr=1e18",
            "train.grad_clip_norm=0",
            "eval.enabled=true",
            "eval.steps=1",
            "eval.sample_prompts=[sea]",
            "eval.interval=100",
        )
    said = [
        record.getMessage() for record in caplog.records if "is not finite" in record.getMessage()
    ]
    assert len(said) == 1
    assert said[0].endswith("a lower optimizer.lr may help, and debug=anomaly names the operation")
    assert "no sample at step 6: the model's logits are not finite" in capsys.readouterr().out
    assert generate([str(path), "--prompt", "sea"]) == 2
    assert (
        capsys.readouterr().err
        == "the model's logits are not finite; its weights were trained to NaN or infinity\n"
    )


def test_nobody_watches(trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader such as `head` that leaves early does not fail the run."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        path = trained(
            "metrics.enable_console=true",
            "eval.enabled=true",
            "eval.steps=1",
            "eval.sample_prompts=[sea]",
        )
    assert json.loads((path / "result.json").read_text())["status"] == "finished"
