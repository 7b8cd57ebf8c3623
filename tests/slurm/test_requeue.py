"""When a job is queued again, and when not. No Slurm is needed: scontrol is a script."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from forge.launch.slurm import requeue
from forge.launch.slurm.task import Rank, placed
from forge.training.signals import Signals

Scontrol = Callable[..., Path]
RUNNING = "JobId=31 JobState=RUNNING Restarts=0 PreemptTime=None"
LIMIT, TERM = 128 + signal.SIGUSR2, 128 + signal.SIGTERM


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scontrol:
    """A scontrol that shows what it is told to; the file it returns has what it was asked. Nobody
    waits for the end.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "31")
    monkeypatch.setattr(requeue, "STOPPED", 0.0)
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def make(shows: str, more: str = "") -> Path:
        asked = tmp_path / "asked"
        path = tmp_path / "scontrol"
        path.write_text(
            f'#!/bin/bash\necho "$*" >> {asked}\n[ "$1" = show ] && echo "{shows}"\n{more}\nexit 0\n'
        )
        path.chmod(0o755)
        return asked

    return make


def test_a_run_that_was_told_of_its_time_limit_is_queued_again(
    scontrol: Scontrol, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = scontrol(RUNNING)
    requeue.after(LIMIT, 5)
    assert asked.read_text().splitlines() == ["show job --oneliner 31", "requeue 31"]
    assert capsys.readouterr().err == "queueing the job again, for the 1. time of 5\n"


def test_an_element_of_an_array_is_called_by_its_place(
    scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last element has the number of the whole array: `scontrol requeue` of that queues all
    elements again.
    """
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "31")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    asked = scontrol(RUNNING)
    requeue.after(LIMIT, 5)
    assert asked.read_text().splitlines() == ["show job --oneliner 31_7", "requeue 31_7"]


@pytest.mark.parametrize(
    ("code", "shows", "said"),
    [
        (
            TERM,
            RUNNING.replace("None", "2026-01-01T00:00:00"),
            "queueing the job again, for the 1. time of 5",
        ),  # there is some grace
        (TERM, RUNNING, "not queued again: SIGTERM was sent to the job by someone"),
        (
            TERM,
            RUNNING.replace("RUNNING", "CANCELLED"),
            "not queued again: the job is CANCELLED: Slurm ends it, or queues it again itself",
        ),
        (
            LIMIT,
            RUNNING.replace("RUNNING", "COMPLETING"),
            "not queued again: the job is COMPLETING: Slurm ends it, or queues it again itself",
        ),
    ],
)
def test_preemption_is_told_from_an_end_that_is_wanted(
    code: int, shows: str, said: str, scontrol: Scontrol, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = scontrol(shows)
    requeue.after(code, 5)
    assert capsys.readouterr().err == f"{said}\n"
    assert ("requeue 31" in asked.read_text()) == said.startswith("queueing")


@pytest.mark.parametrize("code", [0, 1, 2, 128 + signal.SIGINT, 137])
def test_a_run_that_has_ended_is_not_queued_again(code: int, scontrol: Scontrol) -> None:
    asked = scontrol(RUNNING)
    requeue.after(code, 5)
    assert not asked.exists()


def test_the_main_rank_alone_acts(scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    asked = scontrol(RUNNING)
    requeue.after(LIMIT, 5)
    assert not asked.exists()


def test_no_more_often_than_asked_for(
    scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = scontrol(RUNNING)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    requeue.after(LIMIT, 2)
    assert capsys.readouterr().err == "not queued again: launch.max_requeues=2 is used up\n"
    assert not asked.exists()
    requeue.after(LIMIT, 3)
    assert capsys.readouterr().err == "queueing the job again, for the 3. time of 3\n"


def test_slurm_refuses(scontrol: Scontrol, capsys: pytest.CaptureFixture[str]) -> None:
    scontrol(
        RUNNING,
        '[ "$1" = requeue ] && echo "Requested operation is presently disabled for job 31" >&2 && exit 1',
    )
    requeue.after(LIMIT, 5)
    said = "not queued again: scontrol requeue 31: Requested operation is presently disabled for job 31"
    assert capsys.readouterr().err.splitlines()[-1] == said


def test_all_that_is_pickled_is_the_name_of_a_class_and_a_path(tmp_path: Path) -> None:
    content = cloudpickle.dumps(Rank(tmp_path))
    assert len(content) < 200 + len(str(tmp_path))
    assert pickle.loads(content).run_dir == str(tmp_path)


def test_a_task_of_a_step_is_a_rank_whatever_its_environment_says_of_ranks() -> None:
    environ = {
        "RANK": "9",
        "WORLD_SIZE": "99",
        "LOCAL_RANK": "7",
        "SLURM_JOB_ID": "31",
        "SLURM_STEP_ID": "0",
    }
    step = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "a[07-08]",
    }
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "a07",
        "MASTER_PORT": str(15000 + 37 * 31),
    }
    assert placed({**environ, **step}) == expected
    assert placed({**environ, **step, "SLURM_STEP_NUM_TASKS": "1"}) == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }


def test_launch_setup_may_say_where_the_ranks_meet() -> None:
    """As on clusters whose nodes have another name on the network of the GPUs."""
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "a[07-08]",
    }
    found = placed({**step, "MASTER_ADDR": "a07i", "MASTER_PORT": "29500"})
    assert (found["RANK"], found["MASTER_ADDR"], found["MASTER_PORT"]) == ("1", "a07i", "29500")


def test_a_signal_that_comes_before_the_loop_listens_is_not_lost() -> None:
    """It would end a run that is still starting; so it is noted, and the first step is the last."""
    before = [
        (number, signal.getsignal(number))
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT)
    ]
    interrupted: list[str] = []
    loop: Any = SimpleNamespace(interrupted=False, interrupt=interrupted.append)
    try:
        requeue.listen()
        os.kill(os.getpid(), signal.SIGUSR2)
        signals = Signals(60.0)
        signals.on_start(loop)
        signals.granted(loop, signals.wanted(loop))
        signals.close()
        assert isinstance(signal.getsignal(signal.SIGUSR2), requeue.Noted)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert interrupted == ["SIGUSR2"]


@pytest.mark.parametrize(
    ("last", "code"), [("requeue.leave_finished()", 0), ("pass", -signal.SIGUSR2)]
)
def test_a_signal_while_python_ends_does_not_make_a_finished_run_fail(last: str, code: int) -> None:
    lines = ["import os, signal", "from forge.launch import requeue", "class Late:"]
    lines += [
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR2): kill(pid, number)"
    ]
    lines += ["requeue.listen()", "late = Late()", last]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)]).returncode == code
