"""The ledger names every second from the submission of a run to its end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from forge.rundir.wall_clock import starts
from forge.rundir.wall_clock.goodput import Start, add_up, read_goodput
from forge.rundir.wall_clock.ledger import Ledger
from forge.rundir.wall_clock.record import RECORD, read_record
from forge.rundir.wall_clock.starts import LAUNCHED, note_exit, note_submission


def start(
    began: float, time: float, first: int, reached: int, cause: str = "command", /, **seconds
):
    record = {"began": began, "time": time, "cause": cause, "name": "step"}
    return {**record, "first": first, "step": reached, "seconds": seconds}


def test_every_second_has_a_name_and_lost_steps_are_counted() -> None:
    """Killed at step 37 after a save at 30; begun again by the launcher, killed before its first
    step; typed again an hour later; queued again by Slurm at the end.
    """
    killed = Start(
        record=start(110.0, 200.0, 0, 37, start=10.0, step=70.0, data_wait=8.0, checkpoint=2.0),
        marks={30: {"start": 10.0, "step": 55.0, "data_wait": 6.0, "checkpoint": 2.0}},
        end=203.0,
    )
    unbegun = start(205.0, 205.0, -1, -1, "restart") | {"name": "start"}
    typed = start(4010.0, 4050.0, 30, 50, start=15.0, step=20.0, evaluation=5.0)
    queued = start(4150.0, 4170.0, 50, 60, "requeue", start=5.0, step=12.0, rollout=3.0)
    starts = [
        killed,
        Start(record=unbegun, end=209.0),
        Start(record=typed, end=4050.0),
        Start(record=queued, end=4171.0),
    ]
    total = add_up(starts, [100.0, 4000.0])
    assert total.seconds == pytest.approx(
        {
            "queue": 10.0 + 10.0,
            "start": 10.0,
            "data_wait": 6.0,
            "step": 55.0 + 20.0 + 13.0,
            "rollout": 3.0,
            "checkpoint": 2.0,
            "evaluation": 5.0,
            "lost": (70.0 - 55.0) + 3.0 + 2.0,
            "restart": 2.0 + 4.0 + 15.0 + 100.0 + 5.0,
            "idle": 4000.0 - 209.0,
        }
    )
    assert (total.lost_steps, total.starts) == (7, 4)
    assert total.wall == pytest.approx(4171.0 - 100.0)
    assert total.share == pytest.approx((88.0 + 3.0) / 4071.0)


def test_the_first_start_of_a_job_that_slurm_has_queued_again() -> None:
    """The job's node was lost before the run began: all of the wait is that of the submission."""
    queued = Start(record=start(50.0, 60.0, 0, 10, "requeue", step=10.0))
    assert add_up([queued], [0.0]).seconds == pytest.approx({"queue": 50.0, "step": 10.0})


def test_work_of_several_starts_is_lost_where_the_next_goes_further_back() -> None:
    first = Start(record=start(0.0, 20.0, 0, 20, step=20.0), marks={10: {"step": 8.0}})
    second = Start(record=start(20.0, 25.0, 10, 14, step=5.0), marks={12: {"step": 3.0}})
    total = add_up([first, second, Start(record=start(25.0, 30.0, 10, 30, step=5.0))], [0.0])
    assert total.lost_steps == 10 + 4
    assert total.seconds == pytest.approx({"step": 8.0 + 5.0, "lost": 12.0 + 5.0})


def test_a_start_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read equals the clock, while the run is at work, when it was killed, and later."""
    assert read_goodput(tmp_path) is None
    began = saved = time.time()
    note_submission(tmp_path)
    time.sleep(0.02)
    monkeypatch.setenv(LAUNCHED, f"{began + 0.01} command")
    ledger = Ledger.open(tmp_path)
    assert LAUNCHED not in os.environ  # a run started by a rank has its own
    ledger.begin(0)
    for step in (1, 2, 3):
        with ledger.span("data_wait"):
            time.sleep(0.03)
        time.sleep(0.01)
        ledger.rename("data_wait", "rollout", 0.02)
        ledger.step(step)
        if step == 2:
            with ledger.long_span("checkpoint"):
                time.sleep(0.02)
            ledger.saved(2)
            saved = time.time()
    record = read_record(tmp_path)
    assert record is not None
    ledger.step(4)
    assert read_record(tmp_path) == record | {"step": 4}  # its seconds follow within a second
    at_work = read_goodput(tmp_path, running=True)
    assert at_work is not None
    assert at_work.wall == pytest.approx(time.time() - began, abs=0.05)
    assert at_work.seconds["rollout"] == pytest.approx(0.06, abs=1e-3)
    assert at_work.seconds["data_wait"] >= 3 * 0.03 - 0.06 - 1e-3
    assert at_work.seconds["checkpoint"] >= 0.02
    # Killed: no close. The launcher sees the end, and starts the ranks again.
    time.sleep(0.05)
    lost = time.time() - saved
    note_exit(tmp_path, -9)
    monkeypatch.setenv(LAUNCHED, f"{time.time()} restart")
    again = Ledger.open(tmp_path)
    again.begin(2)
    again.step(3)
    again.enter("end")
    again.close()
    note_exit(tmp_path, 0)
    total = read_goodput(tmp_path)
    assert total is not None
    assert total.wall == pytest.approx(time.time() - began, abs=0.05)
    assert (total.lost_steps, total.starts) == (2, 2)
    assert total.seconds["lost"] == pytest.approx(lost, abs=0.05)
    assert "2 steps made again" in total.words()
    assert json.loads((tmp_path / RECORD).read_text())["name"] == "end"


def test_a_start_by_the_same_torchrun_is_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nodes have come or gone, which torchrun does not count; a command typed again later
    has another agent.
    """
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert Ledger.open(tmp_path).record()["cause"] == "command"
    assert Ledger.open(tmp_path).record()["cause"] == "restart"  # the parent of the tests is older
    monkeypatch.setattr(starts, "_process_began", lambda process="self": time.time() + 1)
    assert Ledger.open(tmp_path).record()["cause"] == "command"


def test_a_damaged_ledger_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"began": 1')
    (tmp_path / starts.ROWS).write_text('{"event": "save"\n')
    assert read_goodput(tmp_path) is None
    ledger = Ledger.open(tmp_path)
    ledger.close()
    spent = read_goodput(tmp_path)
    assert spent is not None
    assert spent.starts == 1
