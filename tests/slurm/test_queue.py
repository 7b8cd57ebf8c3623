"""States of jobs from what squeue and sacct say, and waiting for their end. No Slurm is needed:
both commands are scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.launch.slurm import queue as slurm_queue
from forge.launch.slurm.queue import NoAnswer, cancel, reasons, states, wait

Command = Callable[[str, str], None]
GONE = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
NO_ACCOUNTING = 'echo "Slurm accounting storage is disabled" >&2; exit 1'


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a command on PATH that does what a script says; sacct is there, and without records."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    make("sacct", NO_ACCOUNTING)
    return make


def test_elements_of_an_array_and_single_jobs(command: Command) -> None:
    command("squeue", r"printf '12_0|RUNNING\n12_1|PENDING\n12_2|FAILED\n15|COMPLETED\n'")
    assert states(["12_0", "12_2", "15"]) == {
        "12_0": "RUNNING",
        "12_2": "FAILED",
        "15": "COMPLETED",
    }
    assert states([]) == {}


def test_what_slurm_has_forgotten_is_left_out(command: Command) -> None:
    command("squeue", GONE)
    assert states(["12"]) == {}
    assert slurm_queue.has_ended(None)


def test_the_accounting_knows_what_the_queue_has_forgotten(command: Command) -> None:
    command("squeue", "echo '12_0|RUNNING'")
    command("sacct", r"printf '12_0|PENDING\n12_1|CANCELLED by 1000\n12_2|OUT_OF_MEMORY\n'")
    assert states(["12_0", "12_1"]) == {"12_0": "RUNNING", "12_1": "CANCELLED"}


def test_why_jobs_wait_in_the_words_of_slurm(command: Command, tmp_path: Path) -> None:
    said = r"12_0|Resources\n12_1|DependencyNeverSatisfied\n12_2|None\n12_3|launch failed requeued held\n13|Priority\n"
    command("squeue", f"echo $* > {tmp_path}/asked; printf '{said}'")
    found = {
        "12_0": "Resources",
        "12_1": "DependencyNeverSatisfied",
        "12_3": "launch failed requeued held",
    }
    assert reasons(["12_0", "12_1", "12_2", "12_3"]) == found
    assert (
        tmp_path / "asked"
    ).read_text() == "--noheader --array --states=PENDING --jobs=12 --format=%i|%r\n"
    command("squeue", GONE)
    assert reasons(["12_0"]) == reasons([]) == {}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "Unable to contact slurm",
        ),
        ("sleep 5", "squeue gives no answer in 0.2 s."),
    ],
)
def test_no_answer_is_not_the_end_of_a_job(
    command: Command, script: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_queue, "SECONDS", 0.2 if "sleep" in script else 60)
    command("squeue", script)
    with pytest.raises(NoAnswer, match=said) as error:
        states(["12"])
    assert str(error.value).splitlines()[0::2] == [
        "  Slurm",
        "  -> try again once sinfo shows the nodes of the cluster",
    ]


def test_a_machine_without_slurm(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoAnswer, match="there is no squeue on PATH"):
        states(["12"])
    assert reasons(["12"]) == {}


def test_waiting_tells_each_end_once_and_asks_on_while_slurm_does_not_answer(
    command: Command, tmp_path: Path
) -> None:
    """First one ends, then the controller is away, then the other is gone."""
    answers = [
        r"printf '1|RUNNING\n2|FAILED\n'",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
        "echo '1|COMPLETING'",
        GONE,
    ]
    cases = "\n".join(f"{place}) {answer};;" for place, answer in enumerate(answers))
    command(
        "squeue",
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n\ncase $n in\n{cases}\nesac",
    )
    told: list[tuple[str, str | None]] = []
    assert wait(["1", "2"], told=lambda job, state: told.append((job, state)), poll=0.01) == {
        "1": None,
        "2": "FAILED",
    }
    assert told == [("2", "FAILED"), ("1", None)]
    assert (tmp_path / "n").read_text() == "4\n"


def test_cancel(command: Command, tmp_path: Path) -> None:
    command("scancel", f"echo $* >> {tmp_path}/cancelled")
    cancel(["12_0", "15"])
    cancel([])
    assert (tmp_path / "cancelled").read_text() == "12_0 15\n"
    command(
        "scancel",
        "echo 'scancel: error: Kill job error on job id 12: Invalid job id specified' >&2; exit 1",
    )
    cancel(["12"])
    command(
        "scancel",
        "echo 'scancel: error: Kill job error on job id 12: Access/permission denied' >&2; exit 1",
    )
    with pytest.raises(
        NoAnswer,
        match="scancel fails: scancel: error: Kill job error on job id 12: Access/permission denied",
    ):
        cancel(["12"])
