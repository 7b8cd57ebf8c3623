"""States of jobs, waiting for their end, and when a job is queued again. No Slurm is needed: its
commands are scripts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forge.launch.slurm import queue, task
from forge.launch.slurm.queue import NoAnswer, cancel_jobs, job_states, reasons, wait_for_jobs
from forge.training.callbacks.signals import Signals

Command = Callable[[str, str], None]
Capture = pytest.CaptureFixture[str]
GONE = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
RUNNING = "JobId=31 JobState=RUNNING Restarts=0 PreemptTime=None"
LIMIT, TERM = 128 + signal.SIGUSR2, 128 + signal.SIGTERM


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a command on PATH that does what a script says; sacct is there, and without records."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    make("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    return make


def test_states_of_elements_and_single_jobs(command: Command) -> None:
    command("squeue", r"printf '12_0|RUNNING\n12_1|PENDING\n12_2|FAILED\n15|COMPLETED\n'")
    wanted = {"12_0": "RUNNING", "12_2": "FAILED", "15": "COMPLETED"}
    assert job_states(wanted) == wanted
    assert job_states([]) == {}
    command("squeue", "echo '12_0|RUNNING'")
    command("sacct", r"printf '12_0|PENDING\n12_1|CANCELLED by 1000\n12_2|OUT_OF_MEMORY\n'")
    assert job_states(["12_0", "12_1"]) == {"12_0": "RUNNING", "12_1": "CANCELLED"}
    command("sacct", "exit 1")
    command("squeue", GONE)
    assert job_states(["12"]) == {}


def test_why_jobs_wait_in_the_words_of_slurm(command: Command, tmp_path: Path) -> None:
    held = "launch failed requeued held"
    rows = rf"12_0|Resources\n12_2|None\n12_3|{held}\n13|Priority\n"
    command("squeue", f"echo $* > {tmp_path}/asked; printf '{rows}'")
    assert reasons(["12_0", "12_2", "12_3"]) == {"12_0": "Resources", "12_3": held}
    options = "--noheader --array --states=PENDING --jobs=12 --format=%i|%r\n"
    assert (tmp_path / "asked").read_text() == options
    command("squeue", GONE)
    assert reasons(["12_0"]) == reasons([]) == {}


def test_no_answer_is_not_the_end_of_a_job(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("squeue", AWAY)
    with pytest.raises(NoAnswer, match="Unable to contact slurm") as error:
        job_states(["12"])
    assert str(error.value).splitlines()[2] == (
        "  -> try again once sinfo shows the nodes of the cluster"
    )
    command("squeue", "sleep 5")
    monkeypatch.setattr(queue, "SECONDS", 0.2)
    with pytest.raises(NoAnswer, match=r"squeue gives no answer in 0\.2 s"):
        job_states(["12"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoAnswer, match="there is no squeue on PATH"):
        job_states(["12"])
    assert reasons(["12"]) == {}


def test_waiting_tells_each_end_once_and_asks_on_while_slurm_does_not_answer(
    command: Command, tmp_path: Path
) -> None:
    answers = [r"printf '1|RUNNING\n2|FAILED\n'", AWAY, "echo '1|COMPLETING'", GONE]
    cases = "\n".join(f"{place}) {answer};;" for place, answer in enumerate(answers))
    count = f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n"
    command("squeue", f"{count}\ncase $n in\n{cases}\nesac")
    ended: list[tuple[str, str | None]] = []
    last = wait_for_jobs(["1", "2"], ended=lambda job, state: ended.append((job, state)), poll=0.01)
    assert last == {"1": None, "2": "FAILED"}
    assert ended == [("2", "FAILED"), ("1", None)]
    assert (tmp_path / "n").read_text() == "4\n"


def test_cancel(command: Command, tmp_path: Path) -> None:
    command("scancel", f"echo $* >> {tmp_path}/cancelled")
    cancel_jobs(["12_0", "15"])
    cancel_jobs([])
    assert (tmp_path / "cancelled").read_text() == "12_0 15\n"
    error = "echo 'scancel: error: Kill job error on job id 12: {}' >&2; exit 1"
    command("scancel", error.format("Invalid job id specified"))
    cancel_jobs(["12"])
    command("scancel", error.format("Access/permission denied"))
    with pytest.raises(NoAnswer, match=r"scancel fails: .*: Access/permission denied"):
        cancel_jobs(["12"])


PREEMPTED = RUNNING.replace("None", "2026-01-01T00:00:00")
AGAIN = "queueing the job again, for the 1. time of 5"
DENIED = '[ "$1" = requeue ] && echo "disabled for job 31" >&2 && exit 1; exit 0'


@pytest.mark.parametrize(
    ("code", "shows", "environ", "said"),
    [
        (LIMIT, RUNNING, {}, AGAIN),
        (LIMIT, RUNNING, {"SLURM_ARRAY_JOB_ID": "31", "SLURM_ARRAY_TASK_ID": "7"}, AGAIN),
        (LIMIT, RUNNING, {"SLURM_RESTART_COUNT": "4"}, AGAIN.replace("1.", "5.")),
        (LIMIT, RUNNING, {"SLURM_RESTART_COUNT": "5"}, "launch.max_requeues=5 is used up"),
        (LIMIT, RUNNING.replace("RUNNING", "COMPLETING"), {}, "the job is COMPLETING: Slurm ends"),
        (TERM, PREEMPTED, {}, AGAIN),  # there is some grace
        (TERM, RUNNING, {}, "SIGTERM was sent to the job by someone"),
        (TERM, RUNNING.replace("RUNNING", "CANCELLED"), {}, "the job is CANCELLED: Slurm ends it"),
        (LIMIT, DENIED, {}, "scontrol requeue 31: disabled for job 31"),
        (LIMIT, RUNNING, {"RANK": "1"}, ""),  # the main rank alone acts
        *((code, RUNNING, {}, "") for code in (0, 1, 2, 128 + signal.SIGINT, 137)),
    ],
)
def test_when_a_job_is_queued_again(
    code: int,
    shows: str,
    environ: dict[str, str],
    said: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    """An element of an array is called by its place: its last one has the number of them all."""
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"SLURM_JOB_ID": "31", **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(task, "UNTIL_ENDED", 0.0)
    show, denied = (RUNNING, DENIED) if shows == DENIED else (shows, "exit 0")
    asked = tmp_path / "asked"
    asked.touch()
    script = f'echo "$*" >> {asked}\n[ "$1" = show ] && echo "{show}"\n{denied}'
    command("scontrol", script)
    task.requeue(code, 5)
    assert said in capsys.readouterr().err
    job = "31_7" if "SLURM_ARRAY_JOB_ID" in environ else "31"
    requeued = said.startswith("queueing") or shows == DENIED
    assert (f"requeue {job}" in asked.read_text().splitlines()) == requeued
    assert bool(asked.read_text()) == bool(said and "used up" not in said)


def test_a_task_of_a_step_is_a_rank_whatever_its_environment_says_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the rendezvous, which launch.setup may set on a network of its own."""
    step = {"SLURM_JOB_ID": "31", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    step |= {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "a[07-08]"}
    monkeypatch.setattr(os, "environ", {"RANK": "9", "WORLD_SIZE": "99", "LOCAL_RANK": "7", **step})
    own = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    port = str(15000 + 37 * 31)
    assert task.rank_environment() == {**own, "MASTER_ADDR": "a07", "MASTER_PORT": port}
    given = {"MASTER_ADDR": "a07i", "MASTER_PORT": "29500"}
    os.environ.update(given)
    assert task.rank_environment() == {**own, **given}
    os.environ["SLURM_STEP_NUM_TASKS"] = "1"
    assert task.rank_environment() == {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


def test_a_signal_that_comes_before_the_loop_listens_is_not_lost() -> None:
    """It would end a run that is still starting; so it is noted, and the first step is the last."""
    numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT)
    before = [(number, signal.getsignal(number)) for number in numbers]
    interrupted: list[str] = []
    loop: Any = SimpleNamespace(interrupted=False, interrupt=interrupted.append)
    try:
        task.listen()
        os.kill(os.getpid(), signal.SIGUSR2)
        signals = Signals(60.0)
        signals.on_start(loop)
        signals.act(loop, signals.requested(loop))
        signals.close()
        assert isinstance(signal.getsignal(signal.SIGUSR2), task.Noted)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert interrupted == ["SIGUSR2"]


@pytest.mark.parametrize("task_ends", [False, True])
def test_a_signal_while_python_ends_does_not_make_a_finished_run_fail(task_ends: bool) -> None:
    """Python drops its handlers on the way out: with Slurm's default the signal would end it."""
    code = f"""
import os, signal, sys, types
from forge.launch.slurm import task
sys.modules["forge.worker"] = types.SimpleNamespace(main=lambda words: 0)
config = types.SimpleNamespace(run=types.SimpleNamespace(on_end="", elastic=None))
task.newest, task.saved_config.load_config = lambda path: path, lambda *_, **__: config
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR2): kill(pid, number)
late = Late()
if {task_ends}: task.Rank("x")()
else: task.listen()
"""
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == (0 if task_ends else -signal.SIGUSR2)
