"""Runs on a real Slurm: two nodes on this machine. What must take its time, the time limit, is
begun first and looked at last.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TINY
from one_box import OneBox

from forge import cli
from forge.config.launch import Slurm
from forge.launch.local import processes
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm import queue
from forge.launch.sweep import messages
from forge.rundir import directory, outcome

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
TRUSTED = ["trouble.", "pace."]
TRUST = "run.trust=[trouble.,pace.]"
TROUBLE = [TRUST, "+callbacks.trouble._target_=trouble.Trouble"]
SLOWLY = [TRUST, "+callbacks.pace._target_=pace.Pace", "+callbacks.pace.seconds=1"]
# Once the job has been told; and at once for the first element, which may have ended.
LONGER = (
    "test -z $SLURM_RESTART_COUNT || scontrol update JobId=$SLURM_JOB_ID TimeLimit=30 || true",
    "[[ $SLURM_ARRAY_TASK_ID != 0 ]] || scontrol update JobId=${SLURM_ARRAY_JOB_ID}_0 TimeLimit=30",
)
TWO_RANKS = ["parallel=ddp", "run.num_processes=2", "train.batch_size=2", "launch.tasks_per_node=1"]
WANDB = ["metrics.enable_wandb=true", "metrics.wandb_mode=offline"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory that was made as `forge.train launch=slurm` does it."""

    path: Path
    world: int
    section: Slurm

    @property
    def point(self) -> tuple[Path, int]:
        return self.path, self.world

    @property
    def losses(self) -> dict[int, float]:
        rows = (json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["train/loss"] for row in rows}

    def read(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())


Make = Callable[..., Run]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, text_file: Path, one_box_slurm: OneBox) -> Make:
    """A small run, by its name and overrides."""
    folder = tmp_path_factory.mktemp("slurm-runs")
    text = ["data=text", f"data.path={text_file}"]
    common = [*TINY, "model.n_layers=1", *text, "launch=slurm", "launch.gpus_per_node=0"]

    def run(name: str, *overrides: str) -> Run:
        composition, resolution = cli.resolved([*common, *overrides, f"run.dir={folder / name}"])
        path, _ = directory.prepare_directory(resolution, overrides=composition.overrides)
        section = resolution.config.launch
        assert isinstance(section, Slurm)
        return Run(path=path, world=resolution.world.size, section=section)

    return run


def submit(*runs: Run, folder: Path, section: Slurm | None = None) -> list[str]:
    """Their jobs, which are called like the first."""
    points, own = [run.point for run in runs], section or runs[0].section
    return slurm.submit_jobs(points, own, name=runs[0].path.name, folder=folder, trust=TRUSTED)


@pytest.fixture(scope="module")
def told_of_the_limit(
    make: Make, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, Run]]:
    """A job, and an array of which one element ends undisturbed: each with its job id.

    The signal comes up to a minute early: of two minutes, 15 to 45 seconds after the start.
    """
    limit = [*TWO_RANKS, "launch.time=2", "launch.signal_before=75", "train.max_steps=100"]
    runs = [
        make(name, *limit, *own)
        for name, own in (("single", [*SLOWLY, *WANDB]), ("undisturbed", []), ("element", SLOWLY))
    ]
    folder = tmp_path_factory.mktemp("limit")
    began = time.monotonic()
    section = replace(runs[0].section, setup=LONGER)
    jobs = submit(runs[0], folder=folder, section=section)
    jobs += submit(*runs[1:], folder=folder, section=section)
    assert time.monotonic() - began < 5
    assert [re.sub(r"\d+", "N", job, count=1) for job in jobs] == ["N", "N_0", "N_1"]
    return list(zip(jobs, runs, strict=True))


@pytest.fixture(scope="module", autouse=True)
def begun_first(told_of_the_limit: object) -> None:
    """It takes a minute, in which the other tests run."""


def shown(job: str) -> dict[str, str]:
    """What scontrol says of a job."""
    _, said, _ = queue.run_command(["scontrol", "show", "job", "--oneliner", job])
    return dict(re.findall(r"(\w+)=(\S+)", said))


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.1)
    return time.monotonic() - began


def printed(run: Run, rank: int = 0) -> str:
    file = slurm.job_log(run.path, rank)
    return file.read_text() if file and file.exists() else "nothing"


def test_an_array_of_three_of_which_one_fails(make: Make, tmp_path: Path) -> None:
    failing = [*TROUBLE, "+callbacks.trouble.what=raise", "+callbacks.trouble.rank=0"]
    runs = [make(name, *more) for name, more in (("first", []), ("failing", failing), ("last", []))]
    points, section = [run.point for run in runs], runs[0].section
    slurm.check_accepted(points, section, name="three", folder=tmp_path / "slurm")
    assert not (tmp_path / "slurm").exists()
    jobs = slurm.submit_jobs(
        points, section, name="three", folder=tmp_path / "slurm", trust=TRUSTED
    )
    ended: list[str] = []
    ends = queue.wait_for_jobs(jobs, ended=lambda job, state: ended.append(job), poll=0.5)
    assert list(ends.values()) == ["COMPLETED", "FAILED", "COMPLETED"], printed(runs[0])
    assert [shown(job)["ExitCode"] for job in jobs] == ["0:0", "1:0", "0:0"]
    assert sorted(ended) == jobs
    assert [outcome.finished(run.path) is not None for run in runs] == [True, False, True]
    assert "KeyError: 'trouble of its own'" in runs[1].read("error.json")["message"]
    assert "KeyError: 'trouble of its own'" in printed(runs[1])
    (script,) = slurm.scripts(points, section, name="three", folder=tmp_path / "slurm")
    assert (tmp_path / "slurm" / f"{jobs[0].partition('_')[0]}_submission.sh").read_text() == script


def test_two_nodes_with_two_ranks_each_train_as_four_ranks_here(make: Make, tmp_path: Path) -> None:
    four = ["parallel=fsdp", "run.num_processes=4", "train.batch_size=1"]
    there, here = make("nodes", *four, "launch.gpus_per_node=2"), make("here", *four)
    (job,) = submit(there, folder=tmp_path)
    assert processes.start(here.path, 4) == 0
    assert queue.wait_for_jobs([job], poll=0.5) == {job: "COMPLETED"}, printed(there)
    needed = {"NumNodes": "2", "NumTasks": "4", "TresPerNode": "gres:gpu:2"}
    assert needed.items() <= shown(job).items()
    assert there.losses == here.losses
    assert len(there.losses) == 6
    second = ["node=1(2)" in printed(there, rank) for rank in range(4)]
    assert second == [False, False, True, True]


def test_a_rank_that_dies_ends_its_job(make: Make, tmp_path: Path) -> None:
    killed = [*TWO_RANKS, *TROUBLE, "+callbacks.trouble.what=SIGKILL", "train.max_steps=1000000"]
    run = make("killed", *killed)
    (job,) = submit(run, folder=tmp_path)
    wait_for(lambda: (run.path / "metrics.jsonl").exists())
    assert wait_for(lambda: shown(job)["JobState"] == "FAILED", 60) < 30
    assert "task 1: Killed" in printed(run)


def test_a_line_of_setup_that_fails_ends_the_job_before_the_run_begins(
    make: Make, tmp_path: Path
) -> None:
    run = make("unset")
    section = replace(run.section, setup=["export A=1", "source missing/venv/bin/activate"])
    (job,) = submit(run, folder=tmp_path, section=section)
    assert queue.wait_for_jobs([job], poll=0.2) == {job: "FAILED"}
    assert shown(job)["ExitCode"] == "1:0"
    said = "launch.setup failed with exit code 1: source missing/venv/bin/activate"
    assert printed(run).splitlines()[-1] == said
    assert messages.cause(run.path) == said
    assert not (run.path / "attempts.jsonl").exists()


def test_ranks_have_what_the_script_has_where_jobs_have_an_environment_of_their_own(
    make: Make, tmp_path: Path
) -> None:
    """And meet where launch.setup says."""
    run = make("alone", *TWO_RANKS)
    address = ["export MASTER_ADDR=localhost"]
    section = replace(run.section, sbatch={"export": "NONE"}, setup=address)
    (job,) = submit(run, folder=tmp_path, section=section)
    assert queue.wait_for_jobs([job], poll=0.2) == {job: "COMPLETED"}, printed(run)
    assert len(run.losses) == 6


def test_why_jobs_wait(make: Make, tmp_path: Path) -> None:
    runs = [make(name) for name in ("held", "needing", "other")]
    on_hold = replace(runs[0].section, sbatch={"hold": "true"})
    (held,) = submit(runs[0], folder=tmp_path, section=on_hold)
    after = replace(runs[1].section, sbatch={"dependency": f"afterok:{held}"})
    needing = submit(*runs[1:], folder=tmp_path, section=after)
    waiting = {held: "JobHeldUser", **dict.fromkeys(needing, "Dependency")}
    wait_for(lambda: queue.reasons([held, *needing]) == waiting)
    queue.cancel_jobs([held])
    wait_for(lambda: queue.reasons(needing) == dict.fromkeys(needing, "DependencyNeverSatisfied"))
    queue.cancel_jobs(needing)
    wait_for(lambda: not queue.reasons(needing))


def test_a_cancelled_element_is_noticed_and_has_saved(make: Make, tmp_path: Path) -> None:
    runs = [make(f"endless{number}", *SLOWLY, "train.max_steps=1000000") for number in (1, 2)]
    jobs = submit(*runs, folder=tmp_path)
    wait_for(lambda: all((run.path / "metrics.jsonl").exists() for run in runs))
    subprocess.run(["scancel", jobs[0]], check=True)
    assert wait_for(lambda: queue.job_states(jobs)[jobs[0]] == "CANCELLED") < 30
    assert queue.job_states(jobs)[jobs[1]] == "RUNNING"
    wait_for(lambda: "not queued again" in printed(runs[0]))
    result = runs[0].read("result.json")
    assert (result["status"], result["reason"]) == ("stopped", "SIGTERM")
    assert (runs[0].path / "checkpoints" / f"step_{result['step']}").is_dir()
    queue.cancel_jobs(jobs)
    assert queue.wait_for_jobs(jobs, poll=0.2) == dict.fromkeys(jobs, "CANCELLED")
    assert shown(jobs[0])["Restarts"] == "0"


def test_what_slurm_itself_refuses_is_told_before_anything_is_written(
    make: Make, tmp_path: Path
) -> None:
    run, folder = [(tmp_path / "run", 2)], tmp_path / "slurm"
    section = Slurm(partition="gpuu", gpus_per_node=0)
    with pytest.raises(ValueError) as refused:
        slurm.check_accepted(run, section, name="run", folder=folder)
    assert str(refused.value).splitlines()[2] == (
        "     sbatch refuses a job with nodes=1 ntasks-per-node=2 gpus-per-node=0: "
        "invalid partition specified: gpuu / allocation failure: Invalid partition name specified"
    )
    with pytest.raises(slurm.NotSubmitted, match=r"sbatch does not take run: .*Invalid partition"):
        slurm.submit_jobs(run, section, name="run", folder=folder, trust=TRUSTED)
    assert not (tmp_path / "run").exists()
    points = [(tmp_path / str(place), 1) for place in range(1002)]
    section = Slurm(partition="debug", gpus_per_node=0)
    scripts = slurm.scripts(points, section, name="many", folder=folder)
    assert ["--array=0-1000%" in script for script in scripts] == [True, False]
    slurm.check_accepted(points, section, name="many", folder=folder)


@pytest.mark.parametrize(("partition", "by"), [("debug", "Slurm"), ("scavenge", "us")])
def test_a_run_makes_room_for_an_urgent_one_and_comes_back(
    partition: str, by: str, make: Make, tmp_path: Path
) -> None:
    """Where preempted jobs are queued again Slurm does it; where they end after some grace, the run
    itself.
    """
    run = make(f"preempted-{partition}", *SLOWLY, f"launch.partition={partition}")
    (job,) = submit(run, folder=tmp_path)
    wait_for(lambda: (run.path / "metrics.jsonl").exists())
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--nodes=2"]
    urgent += ["--output=/dev/null", "--wrap=sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    assert queue.wait_for_jobs([job], poll=0.5) == {job: "COMPLETED"}, printed(run)
    assert shown(job)["Restarts"] == "1"
    assert ("queueing the job again, for the 1. time of 5" in printed(run)) == (by == "us")
    assert len(run.losses) == 6


def test_a_run_at_its_time_limit_saves_is_queued_again_and_ends_with_the_same_bits(
    told_of_the_limit: list[tuple[str, Run]],
) -> None:
    """A single job, and one element of an array of which the other ends undisturbed."""
    (single, alone), (undisturbed, reference), (element, one_of) = told_of_the_limit
    jobs = [single, undisturbed, element]
    said = printed(alone) + printed(one_of)
    assert queue.wait_for_jobs(jobs, poll=0.5) == dict.fromkeys(jobs, "COMPLETED"), said
    assert [shown(job)["Restarts"] for job in jobs] == ["1", "0", "1"]
    assert len(reference.losses) == 100
    assert alone.losses == reference.losses
    assert one_of.losses == reference.losses
    for run in (alone, one_of):
        lines = [*map(json.loads, (run.path / "attempts.jsonl").read_text().splitlines())]
        assert [line["event"] for line in lines] == ["start", "end", "start", "end"]
        assert (lines[1]["reason"], lines[3]["status"]) == ("SIGUSR2", "finished")
        assert 0 < lines[1]["step"] == lines[2]["step"] < 100
        assert "queueing the job again, for the 1. time of 5" in printed(run)
    ids = [path.stem for path in alone.path.glob("wandb/offline-run-*/*.wandb")]
    assert ids == [f"run-{(alone.path / 'wandb_id').read_text().strip()}"] * 2
