"""`python -m forge.bench`: what it measures, prints and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TINY

import forge
from forge import bench, cli
from forge.planning.activations import flops_again

SIZES = [word for word in TINY if not word.startswith(("eval", "metrics", "train.max"))]
FEW = ["--warmup", "2", "--steps", "4", "--profiled", "2"]


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.nightly
def test_what_is_measured_of_a_sweep(tmp_path: Path) -> None:
    places = {"--json": tmp_path / "all.json", "--markdown": tmp_path / "table.md"}
    files = [str(word) for pair in places.items() for word in pair]
    points = ["optimizer=adamw", "model.n_layers=1,2", "metrics.peak_tflops=0.001"]
    done = verb("-m", *SIZES, *points, *FEW, *files)
    assert done.returncode == 0, done.stderr
    rows = json.loads(places["--json"].read_text())["rows"]
    assert [row["config"] for row in rows] == ["#000 model.n_layers=1", "#001 model.n_layers=2"]
    for row in rows:
        weights = 4 * row["parameters"]
        assert row["memory_bytes"]["weights"] == weights == row["estimate_bytes"]["weights (fp32)"]
        # two moments, and of each tensor the number of steps in fp32
        state = row["memory_bytes"]["optimizer state"] - 2 * weights
        assert 0 < state < 4 * 40
        seconds = row["step_seconds"]
        assert 0 < seconds["p10"] <= seconds["median"] <= seconds["p90"]
        assert row["tokens_per_second"] == pytest.approx(row["tokens_a_step"] / seconds["median"])
        rate = row["tokens_per_second"] * row["flops_a_token"]
        assert row["mfu"] == row["hfu"] == pytest.approx(rate / 1e9)
        assert set(row["parts_seconds"]) == {
            *("waiting for data", "forward", "backward, reduction, clipping", "optimizer")
        }
        assert 0 < sum(row["parts_seconds"].values()) < 3 * seconds["p90"]
        assert "aten::mm" in row["kernels_seconds"]
    table = places["--markdown"].read_text().splitlines()
    assert table[0].startswith("    python -m forge.bench -m ")
    cells = [line.strip("| ").split(" | ") for line in table if line.startswith("| #00")]
    assert [one[-1] for one in cells] == [row["hash"][:8] for row in rows]
    assert "USDT" not in done.stdout + done.stderr
    assert "the whole process, with Python, torch" in table[-1]


@pytest.mark.parametrize(
    "words",
    [["model=tiny"], ["model=tiny", "tokenizer.vocab_size=777"], ["model=llama3_8b"]],
    ids=["of the default tokenizer", "of the tokenizer named", "of the model itself"],
)
def test_the_vocabulary_is_the_one_that_would_train(words: list[str]) -> None:
    options = Namespace(overrides=words, multirun=False, warmup=5, steps=20, profiled=3)
    ((_, timed),) = bench._points(options)
    measured, named = (cli.resolved(each)[1].config for each in (timed, words))
    assert measured.data.schema_name == "synthetic"
    assert measured.model == named.model


@pytest.mark.nightly
def test_two_ranks_and_a_failure(tmp_path: Path) -> None:
    """A point that fails is a row, and the others are measured."""
    (tmp_path / "broken.py").write_text(
        "from forge.training.callback import Callback\n"
        "class Broken(Callback):\n"
        "    def on_start(self, loop):\n"
        "        raise RuntimeError('out of luck')\n"
    )
    places = f"--json={tmp_path / 'all.json'}"
    entry = "+callbacks.mine._target_=broken.Broken"
    command = [*SIZES, "optimizer=adamw", "parallel=fsdp", "run.num_processes=2", *FEW, places]
    done = verb(*command)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "all.json").read_text())["rows"]
    assert row["world"] == 2
    assert row["communication_seconds"] > 0
    assert row["memory_bytes"]["weights"] == pytest.approx(2 * row["parameters"], rel=0.02)
    broken = subprocess.run(
        [sys.executable, "-m", "forge.bench", *SIZES, entry, "run.trust=[broken]", *FEW],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
    )
    assert broken.returncode == 1
    assert "failed: callbacks.mine (broken.Broken) failed in on_start" in broken.stdout


@pytest.mark.parametrize(
    ("every", "share"), [(1, 1.0), (2, 0.5)], ids=["each block", "every second block"]
)
def test_flops_with_what_is_computed_again(every: int, share: float) -> None:
    """A forward pass of a block is a third of its FLOPs; neither the head is computed again nor the
    last product of a block, which nobody reads.
    """
    words = ["train.activation_checkpointing=full", f"train.recompute_every={every}"]
    config = forge.compose([*TINY, "model.n_layers=2", *words]).validate().config
    model: Any = config.model
    blocks = sum(model.block_flops_per_token(layer, 16) for layer in range(2))
    unread = 2 * 2 * model.dim * model.computed_ffn_hidden_dim
    assert flops_again(config) == pytest.approx(share * (blocks / 3 - unread))


def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.main(["--steps", "1"]) == 2
    assert "--steps" in (said := capsys.readouterr().err)
    assert "it is at least 2" in said
    assert bench.main(["model.dims=3"]) == 2
    assert "model.dims" in capsys.readouterr().err
    ranks = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    assert bench.main([]) == 2
    assert "forge.bench starts its ranks itself" in capsys.readouterr().err
