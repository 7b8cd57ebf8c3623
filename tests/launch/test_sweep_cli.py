"""`python -m forge.train -m`: refused whole, shown, started; and a single run as a job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kill_compare
import pytest
import yaml
from helpers.tiny import TINY

import forge
import forge.train
from forge.config.problems import ConfigError
from forge.launch.local import processes
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm import queue
from forge.launch.sweep.directory import SweepDirectory

SMALL = ["train.max_steps=5", "scheduler.warmup_steps=1", "run.device=cpu"]
JOBS = [*SMALL, "launch=slurm", "launch.partition=gpu", "sweep.name=mine"]
TESTS = str(Path(__file__).parents[1])
Capture = pytest.CaptureFixture[str]


def shell(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.train", *arguments]
    environ = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)


def with_tests() -> dict[str, str]:
    """Where a worker finds the callbacks of tests."""
    return {"PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}


def test_a_refused_sweep_writes_and_starts_nothing(capsys: Capture) -> None:
    assert forge.train.main(["-m", "model.n_heads=3,4", "seed=1,2", "eval.interval=5,10"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("4 of 8 points cannot run; nothing was started or written.\n  1. model.n")
    assert list(Path().iterdir()) == []


def test_what_all_points_would_be(capsys: Capture) -> None:
    shown = ["--cfg", "job", "-p", "optimizer"]
    assert forge.train.main([*shown, "-m", "optimizer.lr=1e-3,3e-3"]) == 0
    out = capsys.readouterr().out
    assert [document["lr"] for document in yaml.safe_load_all(out)] == [0.001, 0.003]
    assert "---\n# #001 optimizer.lr=0.003\n" in out
    assert forge.train.main([*shown, "optimizer.lr=1e-3,3e-3"]) == 2
    fix = "optimizer.lr has several values, and this is not a sweep.\n     -> one value, or -m for"
    assert fix in capsys.readouterr().err
    rate = "optimizer.lr=interval(1e-5,1e-2)"
    space = [rate, "optimizer.ns_steps=3,5", "optimizer.weight_decay=0.2"]
    assert forge.train.main([*shown, "-m", "sweeper=optuna", *space]) == 0
    (document,) = yaml.safe_load_all(out := capsys.readouterr().out)
    searched = "optimizer.lr=interval(1e-05, 0.01) optimizer.ns_steps=choice(3, 5)"
    assert out.startswith(f"---\n# every trial of the search, but for {searched}\n")
    assert (document["lr"], document["weight_decay"]) == (0.01, 0.2)
    assert forge.train.main([*shown, "-m", rate]) == 2
    assert "only sweeper=optuna takes one." in capsys.readouterr().err


def test_ranks_that_are_there_already_run_no_sweep() -> None:
    command = [sys.executable, "-m", "forge.train", "-m", "seed=1,2"]
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    own = [{**environ, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    errors: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, env=one, **errors) for one in own]
    said, nothing = (rank.communicate(timeout=120)[1] for rank in ranks)
    what = "another launcher has started the ranks, and a sweep starts those of each point itself."
    fix = "type it without torchrun or srun; launch=slurm submits the points as jobs"
    assert said.endswith(f"  1. -m   [command line]\n     {what}\n     -> {fix}\n")
    assert nothing == ""
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert list(Path().iterdir()) == []


class FakeSlurm:
    """Takes jobs, and says what states they are in; those that are waited for fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[list[tuple[Path, int]], Any, str, Path]] = []
        self.now: dict[str, str] = {}
        monkeypatch.setattr(slurm, "check_accepted", self.check)
        monkeypatch.setattr(slurm, "submit_jobs", self.submit)
        monkeypatch.setattr(queue, "job_states", self.states)
        monkeypatch.setattr(queue, "wait_for_jobs", self.wait)

    def check(self, points: Any, section: Any, *, name: str, folder: Path) -> None:
        new = [path for path in Path().iterdir() if path.name != "sweeps"]
        assert self.taken or not new, "it is asked before anything is written"

    def states(self, jobs: Any) -> dict[str, str]:
        return {job: self.now[job] for job in jobs if job in self.now}

    def submit(
        self, points: Any, section: Any, *, name: str, folder: Path, trust: Any
    ) -> list[str]:
        assert all((path / "config.yaml").is_file() for path, _ in points)
        self.taken.append((list(points), section, name, folder))
        jobs = [f"{len(self.taken)}_{place}" for place in range(len(points))]
        self.now.update(dict.fromkeys(jobs, "PENDING"))
        for (path, _), job in zip(points, jobs, strict=True):
            (path / "job.json").write_text(f'{{"job": "{job}", "folder": "{folder}"}}')
        return jobs

    def wait(self, jobs: Any, *, ended: Any = lambda job, state: None) -> dict[str, str]:
        for job in jobs:
            self.now[job] = "FAILED"
            ended(job, "FAILED")
        return dict.fromkeys(jobs, "FAILED")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(monkeypatch)


def train(*overrides: str) -> int:
    return forge.train.main([*overrides[:1], *JOBS, *overrides[1:]])


@pytest.mark.nightly
def test_a_sweep_as_jobs_and_what_is_in_the_queue_is_not_submitted_again(
    fake: FakeSlurm, capsys: Capture
) -> None:
    assert train("-m", "seed=1,2") == 0
    ((points, section, name, folder),) = fake.taken
    named = [(path.name.rpartition("_")[0], world) for path, world in points]
    assert named == [("000_seed-1", 1), ("001_seed-2", 1)]
    assert (section.partition, section.gpus_per_node, name) == ("gpu", 0, "mine")
    assert folder == Path("sweeps/mine/jobs").resolve()
    assert capsys.readouterr().out.splitlines()[2:] == [
        "#000 submitted seed=1   job 1_0",
        "#001 submitted seed=2   job 1_1",
    ]
    known = SweepDirectory(Path("sweeps/mine")).points()
    assert [(one.job, one.cluster) for one in known] == [("1_0", "slurm"), ("1_1", "slurm")]
    # As after a kill between the submission and the ledger.
    ledger = Path("sweeps/mine/ledger.jsonl")
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if "submitted" not in line))
    assert train("-m", "seed=1,2,3", "launch.dry_run=true") == 0
    shown = capsys.readouterr().out
    assert "--array" not in shown
    assert shown.endswith("\n# element 0: seed=3\n# 1 of 3 points would be submitted\n")
    assert train("-m", "seed=1,2,3") == 0
    assert "(3 points: 2 in the queue, 1 to start)" in capsys.readouterr().out
    assert [len(points) for points, *_ in fake.taken] == [2, 1]
    fake.now.clear()  # all have left the queue, and nothing was begun
    assert train("-m", "seed=1,2,3") == 0
    assert len(fake.taken[-1][0]) == 3


@pytest.mark.usefixtures("fake")
def test_jobs_that_fail_are_shown_with_the_end_of_their_output(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert train("-m", "seed=1,2", "launch.wait=true") == 1
    out = capsys.readouterr().out
    assert "#000 FAILED    seed=1   job 1_0: FAILED\n" in out
    assert "(2 points: 2 failed)\n  #000 failed    seed=1\n       job 1_0: FAILED\n" in out
    assert forge.train.main([*JOBS, "run.dir=mine", "launch.wait=true"]) == 1
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == ["the run did not finish:", "  | job 2_0 is FAILED"]
    log = tmp_path_factory.mktemp("jobs") / "log.out"
    log.write_text("module: not found\nlaunch.setup failed with exit code 1: module load cudda\n")
    monkeypatch.setattr(slurm, "job_log", lambda run_dir, rank=0: log)
    assert forge.train.main([*JOBS, "run.dir=other", "launch.wait=true"]) == 1
    lines = [*log.read_text().splitlines(), f"({log})"]
    assert capsys.readouterr().out.splitlines()[-3:] == [f"  | {line}" for line in lines]


def test_a_machine_without_slurm_shows_scripts_and_submits_nothing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert train("-m", "seed=1", "launch.dry_run=true") == 0
    out, err = capsys.readouterr()
    warning = "nothing varies, so this is a sweep of one point; without -m it is a run"
    assert err == f"warning: {warning}\n"
    assert out.startswith("#!/bin/bash\n")
    for more in ([], ["-m", "seed=1,2"]):
        assert forge.train.main([*more, *JOBS]) == 2
        assert "this machine has no Slurm" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_one_run_as_a_job(
    fake: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ["parallel=ddp", "run.num_processes=2", "launch.tasks_per_node=1"]
    assert forge.train.main([*JOBS, "run.dir=mine", *two]) == 0
    ((points, _, name, folder),) = fake.taken
    assert (points, name) == ([(Path("mine").resolve(), 2)], "mine")
    assert folder == Path("mine/jobs").resolve()
    verbs = "(python -m forge.status mine; python -m forge.cancel mine)"
    assert capsys.readouterr().out.splitlines()[1] == f"submitted: job 1_0   {verbs}"
    with pytest.raises(ConfigError, match=r"launch\.wait=false\n     from Python the run is"):
        forge.train(forge.compose(JOBS))
    # Within a job, launch=slurm of a machine's own file submits no other.
    begun = []
    monkeypatch.setattr(processes, "start", lambda run_dir, ranks, **_: begun.append(ranks) or 0)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert forge.train.main([*JOBS, "run.dir=inside"]) == 0
    assert (begun, len(fake.taken)) == ([1], 1)


@pytest.mark.nightly
def test_jobs_of_submitit_on_this_machine() -> None:
    local = ["launch=submitit_local", "launch.wait=true", "sweep.name=s"]
    done = shell("-m", *TINY, *local, "parallel=ddp", "run.num_processes=2", "seed=1,2")
    assert done.returncode == 0, done.stderr
    assert "(2 points: 2 done)" in done.stdout
    assert shell(*TINY, *local, "run.dir=one").returncode == 0
    failing = ["+callbacks.t={_target_: trouble.Trouble, what: raise, rank: 0}"]
    failing += ["run.trust=[trouble.]"]
    done = shell("-m", *TINY, *failing, *local, "seed=3", **with_tests())
    assert done.returncode == 1
    assert "trouble of its own" in done.stdout


SLOWED = [
    "+callbacks.t={_target_: trouble.Trouble, what: raise, rank: 0, step: 1000, pause: 0.2}",
    "run.trust=[trouble.]",
]
EVAL = ["eval.enabled=true", "eval.interval=10", "eval.steps=1"]
EVAL += ["eval.sample_prompts=[ship]", "eval.sample_tokens=4"]
SWEEP = ["-m", *TINY, *EVAL, "train.max_steps=25", "checkpoint.interval=10", "seed=1,2,3"]


@pytest.mark.nightly
def test_a_sweep_that_trains_has_the_runs_that_were_typed_alone() -> None:
    done = shell("-m", *TINY, "seed=1,2", "launch.jobs=2", "sweep.name=s")
    assert done.returncode == 0, done.stdout
    assert "(2 points: 2 done)" in done.stdout
    assert shell(*TINY, "seed=2", "run.dir=alone").returncode == 0
    first, second = sorted(Path("sweeps/s/points").iterdir())
    rows = [(path / "metrics.jsonl").read_text() for path in (first, second, Path("alone"))]
    assert rows[1] == rows[2] != rows[0]


@pytest.mark.nightly
def test_a_sweep_that_is_killed_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    """Callbacks are free, so the slow points are the same runs. Done points are left, the one that
    was begun continues.
    """
    undisturbed = shell(*SWEEP, "launch.jobs=2", "sweep.name=undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stdout
    command = [sys.executable, "-m", "forge.train", *SWEEP, *SLOWED, "sweep.name=killed"]
    process = subprocess.Popen(command, env={**os.environ, **with_tests()}, stdout=subprocess.PIPE)
    second = _begun(Path("sweeps/killed"), process)
    process.kill()
    process.wait()
    again = shell(*SWEEP, *SLOWED, "sweep.name=killed", **with_tests())
    assert again.returncode == 0, again.stdout
    assert "(3 points: 3 done)" in again.stdout
    assert "#000 starts" not in again.stdout
    names = ("undisturbed", "killed")
    ours, theirs = (sorted(Path("sweeps", name, "points").iterdir()) for name in names)
    assert [path.name for path in ours] == [path.name for path in theirs]
    starts = [(path / "attempts.jsonl").read_text().count('"event": "start"') for path in theirs]
    assert (starts, second.name) == ([1, 2, 1], theirs[1].name)
    for one, other in zip(ours, theirs, strict=True):
        same, different = kill_compare.compare(one, other, tidy=False)
        assert not different
        assert same


def _begun(place: Path, process: subprocess.Popen[bytes]) -> Path:
    """The second point, once it has taken some steps."""
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        for file in place.glob("points/001*/metrics.jsonl"):
            if len(file.read_text().splitlines()) > 2:
                return file.parent
        time.sleep(0.05)
