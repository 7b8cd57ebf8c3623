"""Which node a job of Slurm is queued again without, and when it is not. No Slurm is needed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.config.launch import Slurm
from forge.launch.slurm import jobs, restart
from forge.launch.slurm.restart import Death, cause_of_death, starts_in_vain
from forge.rundir import outcome

FIELDS = {"NodeList": "n[1-2]", "NumNodes": "2", "Partition": "gpu", "JobState": "RUNNING"}
NODES = '[ "$2" = hostnames ] && printf "n1\\nn2\\n" && exit'
Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Put scontrol and sinfo on PATH; returns the file with what scontrol was asked."""
    folder, asked = tmp_path / "bin", tmp_path / "asked"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(nodes: str) -> Path:
        scripts = {"scontrol": f'{NODES}\necho "$*" >> {asked}', "sinfo": f"printf '{nodes}'"}
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)
        return asked

    return make


def output(folder: Path, *lines: str) -> Path:
    log = folder / "log"
    log.write_text("\n".join([*lines, ""]))
    return log


def test_the_rank_that_died_first(tmp_path: Path, commands: Commands) -> None:
    """In this start: what srun has killed after it is not to blame, nor is an earlier start."""
    commands("")
    began = "start of job 7, after {} others"
    earlier = [began.format(0), "srun: error: n9: task 0: Killed"]
    raised = "srun: error: n1: task 0: Exited with exit code 1"
    killed = "srun: error: n2: task 5: Killed"

    def of(*lines: str) -> Death:
        return cause_of_death(tmp_path, output(tmp_path, *earlier, began.format(1), *lines), FIELDS)

    assert of(killed, raised) == Death(cause="task 5 on n2: Killed", node="n2")
    assert of("srun: error: n2: task 5: Segmentation fault (core dumped)").node == "n2"
    assert of("srun: error: n[1-2]: tasks 0-7: Killed").node is None
    assert of(raised, killed) == Death(cause="task 0 on n1: Exited with exit code 1")
    assert of() == Death(cause="srun has failed")
    outcome.record_failure(tmp_path, rank=0, kind="KeyError", message="a", said="a", code=1)
    assert of(raised).cause == "rank 0 failed: KeyError"


def test_the_node_of_a_frozen_rank(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the place of the rank in the job: Slurm may call its host by another name."""
    commands("")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    sign = tmp_path / "alive" / "rank_6"
    sign.parent.mkdir()
    sign.write_text(json.dumps({"host": "other", "process": 3}))
    os.utime(sign, (time.time() - 600, time.time() - 600))
    log = output(tmp_path, "srun: error: n1: tasks 0-3: Exited with exit code 1")
    death = cause_of_death(tmp_path, log, FIELDS)
    assert death.node == "n2"
    assert "rank 6 (process 3 on other) has given no sign of life for 10 min" in death.cause


@pytest.mark.parametrize(
    ("nodes", "given", "excluded", "said"),
    [
        ("n1 idle\\nn2 mix\\nn3 alloc*\\n", "(null)", "n2", ", without node n2 (restart 1 of"),
        ("n1 idle\\nn2 mix\\nn3 idle\\nn4 idle\\n", "n4", "n4,n2", ", without node n2 (restart 1"),
        ("n1 idle\\nn2 mix\\nn3 drain\\n", "(null)", None, ", n2 included: there are no nodes in"),
    ],
)
def test_the_job_goes_back_to_the_queue_without_the_node(
    nodes: str,
    given: str,
    excluded: str | None,
    said: str,
    tmp_path: Path,
    commands: Commands,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unless no node is left in its place: then it would wait for ever."""
    asked = commands(nodes)
    log = output(tmp_path, "srun: error: n2: task 5: Killed")
    fields = FIELDS | {"ExcNodeList": given}
    assert restart._queue_again(tmp_path, "7_1", fields, log, 3) == ""
    update = [] if excluded is None else [f"update JobId=7_1 ExcNodeList={excluded}"]
    assert asked.read_text().splitlines() == ["requeue 7_1", *update]
    assert f"task 5 on n2: Killed; queueing the job again{said}" in capsys.readouterr().err
    (row,) = outcome.attempts(tmp_path)
    assert (row["event"], row["reached"]) == ("restart", -1)


def test_an_elastic_job_goes_on_without_a_node_in_its_place(
    tmp_path: Path,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two nodes of four ranks each: four ranks may continue, and five may not. Once there is
    another node the run has both again.
    """
    monkeypatch.setenv("SLURM_NTASKS", "8")
    asked = commands("n1 idle\\nn2 mix\\n")
    log = output(tmp_path, "srun: error: n2: task 5: Killed")
    for least in (5, 4):
        assert restart._queue_again(tmp_path, "7", FIELDS, log, 3, (least, 8)) == ""
    one = "update JobId=7 ExcNodeList=n2 NumNodes=1 NumTasks=4"
    assert asked.read_text().splitlines() == ["requeue 7", "requeue 7", one]
    assert "without node n2, on 1 node (restart 2" in capsys.readouterr().err
    commands("n1 idle\\nn2 drain\\nn3 idle\\nn4 idle\\n").unlink()
    monkeypatch.setenv("SLURM_NTASKS", "4")
    shrunk = FIELDS | {"NumNodes": "1", "ExcNodeList": "n2", "NodeList": "n1"}
    log = output(tmp_path, "srun: error: n1: task 0: Exited with exit code 1")
    assert restart._queue_again(tmp_path, "7", shrunk, log, 3, (4, 8)) == ""
    both = "update JobId=7 ExcNodeList=n2 NumNodes=2 NumTasks=8"
    assert asked.read_text().splitlines() == ["requeue 7", both]


def test_when_the_run_is_not_started_again(tmp_path: Path) -> None:
    rows = [{"event": "restart", "reached": step} for step in (4, 4, 3)]
    (tmp_path / "attempts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[:2]))

    def why(code: int = 1, most: int = 9, **fields: str) -> str:
        return restart._final(tmp_path, FIELDS | fields, code, most)

    assert why() == ""
    assert why(JobState="CANCELLED") == "the job is CANCELLED"
    assert why(code=2) == "a mistake in the options"
    assert why(most=2) == "launch.max_restarts=2 is used up"
    (tmp_path / "attempts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert why() == "3 starts in a row have not come beyond step 4"
    assert starts_in_vain([4, 4, 3, 5, 5]) == (1, 5)


def test_the_script_of_a_job_that_may_be_started_again(tmp_path: Path) -> None:
    """Slurm may queue it again, the output of each start has a beginning, and its end is read."""
    section, points = Slurm(max_requeues=0, max_restarts=2), [(tmp_path / "run", 1)]
    (script,) = jobs.scripts(points, section, name="run", folder=tmp_path / "my jobs")
    lines = script.splitlines()
    assert "#SBATCH --requeue" in lines
    assert 'echo "start of job $SLURM_JOB_ID, after ${SLURM_RESTART_COUNT:-0} others"' in lines
    assert (
        "export SLURM_NTASKS=$((SLURM_JOB_NUM_NODES * 1)); export SLURM_NPROCS=$SLURM_NTASKS"
        in lines
    )
    assert lines[-1].startswith("code=$?; ((code == 0)) || exec ")
    assert lines[-1].endswith(f" -m forge.launch.slurm.restart '{tmp_path}/my jobs' \"$code\"")
    (without,) = jobs.scripts(points, Slurm(), name="run", folder=tmp_path / "my jobs")
    assert "restart" not in without
