"""A run of 300 steps that is killed ten times: its ledger has every second, and every lost step."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from pathlib import Path

import kill_compare
import kill_ranks
import pytest

from forge.rundir.outcome import attempts
from forge.rundir.wall_clock.goodput import read_goodput

TRUST = "run.trust=[helpers.]"


@pytest.mark.nightly
def test_the_ledger_of_a_run_killed_ten_times(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts sum to the clock of this test within 1 %, the steps made again are those that a
    callback has counted, and the weights are those of a run left alone.
    """
    kills, steps = 10, 300
    monkeypatch.setattr(kill_ranks, "STEPS_A_KILL", 27)
    data = ["data=text", f"data.path={text_file}", TRUST]
    alone, run = tmp_path / "alone", tmp_path / "run"
    marks = ["+callbacks.marks._target_=helpers.step_marks.StepMarks"]
    folders = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}

    def command(place: Path, folder: Path) -> list[str]:
        folder.mkdir()
        more = [*data, *marks, f"+callbacks.marks.folder={folder}"]
        words = kill_ranks.command_of(place, kills, more)
        return [re.sub(r"^train.max_steps=.*", f"train.max_steps={steps}", word) for word in words]

    subprocess.run(
        command(alone, tmp_path / "marks"), check=True, capture_output=True, timeout=300, env=env
    )
    scratch, began = tmp_path / "killed", time.time()
    words = command(run, scratch)
    deaths = list(kill_ranks.storm(words, run, kills, random.Random(3), env))
    wall = time.time() - began
    assert len(deaths) == kills + 1
    spent = read_goodput(run)
    assert spent is not None
    assert spent.wall == pytest.approx(wall, rel=0.01)
    # A step counts once ledger.json has it: behind its callbacks, before the next one begins.
    begun, ended = ((scratch / name).stat().st_size for name in ("begun", "ended"))
    print(f"{spent.words()}; clock {wall:.2f} s, ledger {spent.wall:.2f} s, {ended - steps} again")
    starts = [row["step"] for row in attempts(run) if row["event"] == "start"]
    assert spent.starts == kills + 1 == len(starts)
    assert begun - steps - kills <= spent.lost_steps <= ended - steps
    assert spent.seconds["lost"] > 0
    assert spent.seconds["restart"] > spent.seconds["start"] > 0
    assert not kill_compare.compare(alone, run, tidy=False)[1]
