"""benchmarks/learning/moe_runs.py in its small form: its tables say what is in the runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import moe_runs
import pytest

SHARED = (
    "tokenizer.vocab_size=300 model.vocab_size=300 model.dim=16 model.n_heads=2 train.seq_len=16 "
    "model.ffn_hidden_dim=512 metrics.log_interval=1 scheduler.warmup_steps=2 run.device=cpu "
    "data=text"
)
ARMS = ("dense", "selection bias", "neither", "auxiliary loss, capacity")
ROWS = [
    ("training loss", "train/loss", "dense", 4),
    ("busiest expert", "train/moe/load_max", "selection bias", 3),
    ("idlest expert", "train/moe/load_min", "neither", 3),
    ("bias, highest less lowest", "train/moe/bias", "selection bias", 3),
    ("dropped", "train/moe/dropped", "auxiliary loss, capacity", 3),
]


@pytest.mark.nightly
def test_small_form(
    text_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    options = f"--runs={runs} --steps=16 --rates 0.01 --seeds 7 -- {SHARED} data.path={text_file}"
    monkeypatch.setattr(moe_runs, "RUNS", {name: moe_runs.RUNS[name] for name in ARMS})
    monkeypatch.setattr(sys, "argv", ["benchmarks/learning/moe_runs.py", *options.split()])
    moe_runs.main()
    page = capfd.readouterr().out
    assert "The rate of the selection bias was given: 0.01." in page
    for what, key, name, digits in ROWS:
        file = moe_runs.run_folder(runs, name, 7) / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        logged = {row["step"]: row[key] for row in rows if key in row}
        cells = " | ".join(f"{logged[step]:.{digits}f}" for step in (1, 4, 8, 12, 16))
        assert f"| {what} | {name} | {cells} |" in page
    typed = "model.moe.aux_loss_weight=0 model.moe.bias_update_rate=0.01 optimizer=adamw"
    typed += " seed=7 train.max_steps=16"
    assert f"| selection bias | `python -m forge.train model=moe_tiny {typed} " in page
    assert "| dropped | neither |" not in page


@pytest.mark.nightly
def test_flops_must_be_equal() -> None:
    found = [line.split(" | ") for line in moe_runs.equal_flops([]).splitlines()[2:]]
    flops = 6 * (2 * (4 + 3 * 4) * 128 * 128 + 4096 * 128) + 12 * 2 * 128 * 256
    assert {cells[-1].rstrip(" |") for cells in found} == {f"{flops:,}"}
    assert [cells[-2] for cells in found] == ["0", *6 * [f"{6 * 2 * 8 * 128:,}"]]
    with pytest.raises(SystemExit, match="The models do not spend the same on a token"):
        moe_runs.equal_flops(["model.moe.ffn_hidden_dim=128"])
