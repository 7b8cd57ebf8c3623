"""A run of 300 steps that is killed ten times: its ledger has every second, and every lost step."""

from __future__ import annotations

from pathlib import Path

import kill_ledger
import kill_ranks
import pytest

from forge.rundir.outcome import attempts


@pytest.mark.nightly
def test_the_ledger_of_a_run_killed_ten_times(text_file: Path, tmp_path: Path) -> None:
    """The parts sum to the clock of this test within 1 %, the steps made again are those that a
    callback has counted, and the weights are those of a run left alone; ranks, the command, and
    nodes with their disks are killed.
    """
    kills, env = 10, kill_ledger.environment(tmp_path)
    words = ["data=text", f"data.path={text_file}"]
    shown = kill_ledger.show(tmp_path, words, kills=kills, steps=300, seed=2, env=env)
    spent, victims = shown.spent, {death.victim for death in shown.deaths}
    print(f"{spent.words()}; clock {shown.clock:.2f} s, ledger {spent.wall:.2f} s, {shown.lost}")
    assert not shown.faults()
    assert victims & {*kill_ranks.NODES}
    assert kill_ranks.COMMAND in victims
    starts = [row["step"] for row in attempts(tmp_path / "run") if row["event"] == "start"]
    assert spent.starts == kills + 1 == len(starts)
    assert any(step % kill_ledger.SHARED for step in starts), "none was taken from a node's disk"
    assert spent.seconds["lost"] > 0
    assert spent.seconds["restart"] > spent.seconds["start"] > 0
