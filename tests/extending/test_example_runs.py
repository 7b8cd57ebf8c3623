"""The example package through the command line: it trains, is killed, continues, writes text and is
exported.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from example_helpers import SMALL, USE, Verb
from safetensors.torch import load_file

from forge.training.callbacks.trackers import WALL_CLOCK

SMOOTH = [
    *USE,
    "+recipe=smooth",
    *SMALL,
    "model.dim=16",
    "model.n_layers=2",
    "model.max_seq_len=32",
    "train.max_steps=10",
]
SMOOTH += ["checkpoint.interval=4", "callbacks.ema.log_interval=3"]

KILLER = """
import os
from forge.training.callback import Callback

class Killer(Callback):
    def on_step_end(self, loop, output):
        if loop.state.step == 7 and "KILL" in os.environ:
            os._exit(9)

class Broken(Callback):
    def on_step_end(self, loop, output):
        if loop.state.step == 2:
            raise ValueError("the shapes differ")
"""


def rows(run: Path) -> list[list[str]]:
    """What the CSV tracker wrote, less what the clock decides."""
    with (run / "metrics.csv").open() as file:
        return [row for row in csv.reader(file) if row[1] not in WALL_CLOCK]


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["parallel=single", "parallel=fsdp run.num_processes=2"])
def test_a_killed_run_ends_with_the_average_and_the_rows_of_an_undisturbed_one(
    layout: str, verb: Verb, desk: Path
) -> None:
    (desk / "killer.py").write_text(KILLER)
    options = [
        *SMOOTH,
        *layout.split(),
        "run.trust=[forge_example.,killer.]",
        "+callbacks.killer._target_=killer.Killer",
    ]
    verb("train", *options, "run.dir=whole")
    verb("train", *options, "run.dir=killed", code=9, KILL="1")
    assert not (desk / "killed" / "ema.safetensors").exists()
    said = verb("train", *options, "run.dir=killed").stdout
    assert "resuming from checkpoints/step_4 at step 4" in said
    whole, killed = (load_file(desk / name / "ema.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(whole[name].equal(killed[name]) for name in whole)
    assert (desk / "whole" / "metrics.jsonl").read_bytes() == (
        desk / "killed" / "metrics.jsonl"
    ).read_bytes()
    assert rows(desk / "whole") == rows(desk / "killed")
    assert [row[0] for row in rows(desk / "whole") if row[1] == "ema/distance"] == ["3", "6", "9"]

    trust = ["--trust", "forge_example."]
    assert verb(
        "generate", "whole", "--prompt", "the sea", "--tokens", "3", *trust
    ).stdout.startswith("the sea")
    verb("export", "whole", "weights.safetensors", *trust)
    exported = load_file(desk / "weights.safetensors")
    assert set(exported) == set(whole)
    assert not exported["embedding.weight"].equal(whole["embedding.weight"])


@pytest.mark.nightly
def test_a_broken_callback_is_one_message(verb: Verb, desk: Path) -> None:
    (desk / "mine.py").write_text(KILLER)
    small = [*SMALL, "model.dim=16", "model.n_layers=1", "train.max_steps=4", "eval.enabled=false"]
    done = verb(
        "train",
        *small,
        "run.dir=run",
        "run.trust=[mine.]",
        "+callbacks.bad._target_=mine.Broken",
        code=1,
    )
    assert (
        "callbacks.bad (mine.Broken) failed in on_step_end at step 2: ValueError: the shapes differ"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    error = json.loads((desk / "run" / "error.json").read_text())
    assert 'raise ValueError("the shapes differ")' in error["traceback"]


def test_mistakes_are_found_before_anything_starts(verb: Verb, desk: Path) -> None:
    typed = ["model.kernel_siz=3", "objective.smoothin=.3", "callbacks.ema.deca=.5"]
    done = verb("train", *SMOOTH, "run.dir=run", *typed, code=2)
    for meant in ("model.kernel_size=3", "objective.smoothing=.3", "callbacks.ema.decay=.5"):
        assert f"did you mean {meant}?" in done.stderr
    assert sorted(path.name for path in desk.iterdir()) == ["text.txt"]
