"""conf/debug: each preset end to end on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_helpers import logged

from forge import cli, worker
from forge.rundir import directory

TINY = [
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.ffn_hidden_dim=64",
    "run.device=cpu",
    "run.num_threads=1",
]


@pytest.fixture
def preset(tmp_path: Path, text_file: Path) -> Callable[..., Path]:
    """Run debug=NAME over the defaults, with nothing but a tiny model."""

    def run(name: str, *overrides: str, code: int = 0) -> Path:
        place = [
            "data=text",
            f"data.path={text_file}",
            f"run.dir={tmp_path / name}",
            f"debug={name}",
        ]
        composition, resolution = cli.resolved([*place, *TINY, *overrides])
        path, _ = directory.create(resolution, overrides=composition.overrides)
        assert worker.main([str(path)]) == code
        return path

    return run


@pytest.mark.nightly
def test_overfit_learns_one_batch_by_heart(preset: Callable[..., Path]) -> None:
    path = preset(
        "overfit",
        "train.batch_size=2",
        "train.seq_len=16",
        "optimizer.lr=0.01",
        "scheduler.warmup_steps=5",
    )
    losses = logged(path, "train/loss")
    assert losses[10] > 3
    assert losses[200] < 0.1


def test_anomaly_names_the_operation_that_makes_a_nan(
    preset: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from forge.objectives import pretrain

    real = pretrain.cross_entropy

    def with_a_nan(logits: torch.Tensor, targets: torch.Tensor, **options: float) -> object:
        return real(logits + (logits * 0).sqrt(), targets, **options)

    monkeypatch.setattr(pretrain, "cross_entropy", with_a_nan)
    small = ("train.max_steps=1", "train.batch_size=1", "train.seq_len=16", "eval.enabled=false")
    with pytest.warns(UserWarning, match="Error detected in MulBackward0"):
        preset("anomaly", *small, code=1)
    assert "MulBackward0" in capsys.readouterr().err
