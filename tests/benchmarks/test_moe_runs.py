"""benchmarks/moe_runs.py in its small form: its tables say what is in the runs."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import moe_runs
import pytest

STEPS = 16
SIZES = [
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=16",
    "model.n_heads=2",
    "train.seq_len=16",
]
SHARED = [
    *SIZES,
    "model.ffn_hidden_dim=512",
    "metrics.log_interval=1",
    "scheduler.warmup_steps=2",
    "run.device=cpu",
]


@pytest.mark.nightly
def test_small_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw, words = (
        random.Random(0),
        ["the", "sea", "ship", "whale", "white", "captain", "said", "and"],
    )
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{i} {' '.join(draw.choices(words, k=8))}\n" for i in range(300)))
    shared = [*SHARED, "data=text", f"data.path={text}"]
    options = [
        f"--runs={tmp_path / 'runs'}",
        f"--steps={STEPS}",
        "--rates",
        "0.01",
        "--seeds",
        "7",
        "--",
        *shared,
    ]
    few = ("dense", "selection bias", "neither", "auxiliary loss, capacity")
    monkeypatch.setattr(moe_runs, "RUNS", {name: moe_runs.RUNS[name] for name in few})
    monkeypatch.setattr(sys, "argv", ["benchmarks/moe_runs.py", *options])
    moe_runs.main()
    page = capfd.readouterr().out
    assert (
        f"    python benchmarks/moe_runs.py --runs=DIR --steps={STEPS} --rates 0.01 --seeds 7 --"
        f" {' '.join(shared)}\n" in page
    )
    assert "The rate of the selection bias was given: 0.01." in page
    runs = {name: rows(moe_runs.run_folder(tmp_path / "runs", name, 7)) for name in moe_runs.RUNS}
    for what, key, name in [
        ("training loss", "train/loss", "dense"),
        ("training loss", "train/loss", "neither"),
        ("busiest expert", "train/moe/load_max", "selection bias"),
        ("idlest expert", "train/moe/load_min", "neither"),
        ("bias, highest less lowest", "train/moe/bias", "selection bias"),
        ("dropped", "train/moe/dropped", "auxiliary loss, capacity"),
    ]:
        logged = {row["step"]: row[key] for row in runs[name] if key in row}
        digits = 4 if key == "train/loss" else 3
        cells = " | ".join(
            f"{logged[step]:.{digits}f}" for step in (1, 4, 8, 12, 16)
        )  # a sixteenth of 16 steps is one
        assert f"| {what} | {name} | {cells} |" in page
    evaluated = [row["eval/loss"] for row in runs["dense"] if "eval/loss" in row]
    assert len(evaluated) == 4
    assert (
        f"| validation loss | dense |  | {' | '.join(f'{loss:.4f}' for loss in evaluated)} |"
        in page
    )
    last = next(row["eval/loss"] for row in reversed(runs["neither"]) if "eval/loss" in row)
    apart = f"{last - evaluated[-1]:+.4f}"
    assert f"| neither | {last:.4f} ({apart}) | {apart} |" in page
    typed = (
        "python -m forge.train model=moe_tiny model.moe.aux_loss_weight=0"
        " model.moe.bias_update_rate=0.01 seed=7 train.max_steps=16"
    )
    assert f"| selection bias | `{typed} " in page
    assert "| dropped | neither |" not in page


def test_each_run_evens_the_load_in_its_own_way() -> None:
    moe = {name: moe_runs.composed(name, 0.002, [])[0].moe for name in moe_runs.RUNS}
    values = (
        "num_experts",
        "aux_loss_weight",
        "bias_update_rate",
        "capacity_factor",
        "routed_scaling_factor",
    )
    assert {name: tuple(getattr(one, value) for value in values) for name, one in moe.items()} == {
        "dense": (0, 0.01, 0.0, 0.0, 1.0),
        "auxiliary loss": (8, 0.01, 0.0, 0.0, 1.0),
        "selection bias": (8, 0.0, 0.002, 0.0, 1.0),
        "neither": (8, 0.0, 0.0, 0.0, 1.0),
        "auxiliary loss, capacity": (8, 0.01, 0.0, 1.25, 1.0),
        "auxiliary loss, scaled": (8, 0.01, 0.0, 0.0, 2.0),
        "selection bias, scaled": (8, 0.0, 0.002, 0.0, 2.0),
    }


def test_flops_must_be_equal() -> None:
    found = [line.split(" | ") for line in moe_runs.equal_flops([]).splitlines()[2:]]
    assert {cells[-1].rstrip(" |") for cells in found} == {
        f"{6 * (2 * (4 + 3 * 4) * 128 * 128 + 4096 * 128) + 12 * 2 * 128 * 256:,}"
    }
    assert [cells[-2] for cells in found] == ["0", *6 * [f"{6 * 2 * 8 * 128:,}"]]
    with pytest.raises(SystemExit, match="The models do not spend the same on a token"):
        moe_runs.equal_flops(["model.moe.ffn_hidden_dim=128"])


def test_the_rate_with_the_lowest_load_of_the_busiest_expert_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = {
        0.001: (1.0, 3.0),
        0.003: (9.0, 1.5),
        0.01: (1.0, 2.0),
    }  # in the first and the second half of the trial

    def train(folder: Path, words: Sequence[str]) -> None:
        rate = next(
            float(word.partition("=")[2])
            for word in words
            if word.startswith("model.moe.bias_update_rate=")
        )
        folder.mkdir()
        values = [
            {
                "train/moe/load_max": loads[rate][step > 4],
                "train/moe/load_min": 0.5,
                "eval/loss": 4.0,
            }
            for step in range(1, 9)
        ]
        (folder / "metrics.jsonl").write_text(
            "\n".join(json.dumps(row | {"step": step}) for step, row in enumerate(values, 1))
        )

    monkeypatch.setattr(moe_runs, "train", train)
    options = argparse.Namespace(
        rates=list(loads), seeds=[1], trial_steps=8, runs=tmp_path, shared=[]
    )
    rate, page = moe_runs.chosen_rate(options)
    assert rate == 0.003
    assert "| 0.003 | 1.50 | 0.50 | 4.0000 |\n" in page
    assert page.endswith("\n0.003 is taken.")


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
