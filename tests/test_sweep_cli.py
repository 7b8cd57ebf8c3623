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
from tiny import TINY

import forge
import forge.train
from forge.config.problems import ConfigError
from forge.launch.local import processes
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep.directory import SweepDirectory

SMALL = ["train.max_steps=5", "scheduler.warmup_steps=1", "run.device=cpu"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def shell(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.train", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environ}, timeout=300
    )


def test_sixteen_points_with_twelve_bad_ones_write_and_start_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        forge.train.main(
            ["-m", "model.n_heads=3,4", "optimizer.lr=-1,1e-3", "seed=1,2", "eval.interval=5,10"]
        )
        == 2
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(
        "12 of 16 points cannot run; nothing was started or written.\n  1. model.n_heads=3   [command line]\n"
    )
    assert "     in the 8 points with model.n_heads=3\n" in said.err
    assert "  #11   model.n_heads=4 optimizer.lr=-1 seed=2 eval.interval=10   (2)\n" in said.err
    assert list(Path().iterdir()) == []


def test_torch_stays_out_of_a_preflight() -> None:
    code = "import sys; from forge.launch.sweep.preflight import Preflight; Preflight(['seed=1,2,3', 'model=tiny,small']).points(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_what_all_points_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        forge.train.main(["--cfg", "job", "-p", "optimizer", "-m", "optimizer.lr=1e-3,3e-3"]) == 0
    )
    out = capsys.readouterr().out
    assert [document["lr"] for document in yaml.safe_load_all(out)] == [0.001, 0.003]
    assert "---\n# #001 optimizer.lr=0.003\n" in out
    assert forge.train.main(["--cfg", "job", "optimizer.lr=1e-3,3e-3"]) == 2
    assert (
        "optimizer.lr has several values, and this is not a sweep.\n     -> one value, or -m for a sweep\n"
        in capsys.readouterr().err
    )


def test_what_all_trials_of_a_search_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--cfg", "job", "-p", "optimizer", "-m", "sweeper=optuna"]
    assert (
        forge.train.main(
            [
                *search,
                "optimizer.lr=interval(1e-5,1e-2)",
                "optimizer.eps=1e-8,1e-6",
                "optimizer.weight_decay=0.2",
            ]
        )
        == 0
    )
    (shown,) = yaml.safe_load_all(out := capsys.readouterr().out)
    assert out.startswith(
        "---\n# every trial of the search, but for optimizer.lr=interval(1e-05, 0.01) optimizer.eps=choice(1e-08, 1e-06)\n"
    )
    assert (shown["lr"], shown["weight_decay"]) == (0.003, 0.2)
    assert forge.train.main([*search, "optimizer.lr=interval(1e-5,1e-2)", "optimizer.lrr=1"]) == 2
    assert "did you mean optimizer.lr=1?" in capsys.readouterr().err
    assert forge.train.main(search) == 2
    assert "there is nothing to search." in capsys.readouterr().err
    assert forge.train.main(["--cfg", "job", "-m", "optimizer.lr=interval(1e-5,1e-2)"]) == 2
    assert (
        "an interval has no first value; only sweeper=optuna takes one." in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "started",
    [{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}],
    ids=["torchrun"],
)
def test_ranks_that_are_there_already_run_no_sweep(started: dict[str, str]) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "forge.train", "-m", "seed=1,2"],
            env={**os.environ, **started, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert said == [
        "1 problem; nothing was started or written.\n  1. -m   [command line]\n"
        "     another launcher has started the ranks, and a sweep starts those of each point itself.\n"
        "     -> type it without torchrun or srun; launch=slurm submits the points as jobs\n",
        "",
    ]
    assert list(Path().iterdir()) == []


class FakeSlurm:
    """Takes jobs, and says what states they are in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[list[tuple[Path, int]], Any, str, Path]] = []
        self.checked = 0
        self.now: dict[str, str] = {}
        monkeypatch.setattr(slurm, "check", self.check)
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(
            slurm, "states", lambda jobs: {job: self.now[job] for job in jobs if job in self.now}
        )
        monkeypatch.setattr(slurm, "wait", self.wait)
        monkeypatch.setattr(slurm, "verdict", lambda *_: [])

    def check(self, points: Any, section: Any, *, name: str, folder: Path) -> None:
        assert not list(Path().iterdir()), "it is asked before anything is written"
        self.checked += len(points)

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

    def wait(self, jobs: Any, *, told: Any = lambda job, state: None) -> dict[str, str]:
        for job in jobs:
            self.now[job] = "FAILED"
            told(job, "FAILED")
        return dict.fromkeys(jobs, "FAILED")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(monkeypatch)


JOBS = [*SMALL, "launch=slurm", "launch.partition=gpu", "sweep.name=mine"]


def test_a_sweep_as_jobs(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert forge.train.main(["-m", *JOBS, "seed=1,2"]) == 0
    ((points, section, name, folder),) = fake.taken
    assert [(path.name.rpartition("_")[0], world) for path, world in points] == [
        ("000_seed-1", 1),
        ("001_seed-2", 1),
    ]
    assert (section.partition, section.gpus_per_node, name, folder) == (
        "gpu",
        0,
        "mine",
        Path("sweeps/mine/jobs").resolve(),
    )
    assert capsys.readouterr().out.splitlines()[2:] == [
        "#000 submitted seed=1   job 1_0",
        "#001 submitted seed=2   job 1_1",
    ]
    assert [
        (point.job, point.cluster) for point in SweepDirectory(Path("sweeps/mine")).points()
    ] == [("1_0", "slurm"), ("1_1", "slurm")]


def test_what_is_in_the_queue_is_not_submitted_again(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fake, "check", lambda *_, **__: None)
    monkeypatch.setattr(slurm, "check", lambda *_, **__: None)
    assert forge.train.main(["-m", *JOBS, "seed=1,2"]) == 0
    ledger = Path("sweeps/mine/ledger.jsonl")
    ledger.write_text(
        "".join(
            line for line in ledger.read_text().splitlines(keepends=True) if "submitted" not in line
        )
    )
    capsys.readouterr()
    assert forge.train.main(["-m", *JOBS, "seed=1,2,3", "launch.dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert "--array" not in shown
    assert shown.endswith("\n# element 0: seed=3\n# 1 of 3 points would be submitted\n")
    assert forge.train.main(["-m", *JOBS, "seed=1,2,3"]) == 0
    assert "(3 points: 2 in the queue, 1 to start)" in capsys.readouterr().out
    assert [len(points) for points, *_ in fake.taken] == [2, 1]
    fake.now.clear()  # all have left the queue, and nothing was begun
    assert forge.train.main(["-m", *JOBS, "seed=1,2,3"]) == 0
    assert len(fake.taken[-1][0]) == 3


def test_waiting_for_jobs_that_fail(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert forge.train.main(["-m", *JOBS, "seed=1,2", "launch.wait=true"]) == 1
    out = capsys.readouterr().out
    assert "#000 FAILED    seed=1   job 1_0: FAILED\n" in out
    assert "(2 points: 2 failed)\n  #000 failed    seed=1\n       job 1_0\n" in out.replace(
        ": FAILED\n", "\n"
    )


def test_a_sweep_of_one_point_is_told_so(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forge.train.main(["-m", *JOBS, "seed=1"]) == 0
    assert (
        capsys.readouterr().err
        == "warning: nothing varies, so this is a sweep of one point; without -m it is a run\n"
    )


@pytest.mark.usefixtures("fake")
def test_scripts_are_shown_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert forge.train.main(["-m", *JOBS, "seed=1,2,3", "launch.dry_run=true"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --array=0-2" in out
    assert "#SBATCH --partition=gpu" in out
    assert out.endswith(
        "\n# element 0: seed=1\n# element 1: seed=2\n# element 2: seed=3\n# 3 of 3 points would be submitted\n"
    )
    assert forge.train.main([*JOBS, "launch.dry_run=true"]) == 0
    assert "#SBATCH --array" not in capsys.readouterr().out
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("more", [[], ["-m", "seed=1,2"]])
def test_a_machine_without_slurm_submits_nothing(
    more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert forge.train.main([*more, *JOBS]) == 2
    assert "this machine has no Slurm" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_one_run_as_a_job(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        forge.train.main(
            [
                *JOBS,
                "run.dir=mine",
                "parallel=ddp",
                "run.num_processes=2",
                "launch.tasks_per_node=1",
            ]
        )
        == 0
    )
    ((points, _, name, folder),) = fake.taken
    assert (points, name, folder) == (
        [(Path("mine").resolve(), 2)],
        "mine",
        Path("mine/jobs").resolve(),
    )
    assert capsys.readouterr().out.splitlines()[1] == (
        "submitted: job 1_0   (python -m forge.status mine; python -m forge.cancel mine)"
    )


def test_one_run_as_a_job_that_is_waited_for(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forge.train.main([*JOBS, "run.dir=mine", "launch.wait=true"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the run did not finish:",
        "  | job 1_0 is FAILED",
    ]


@pytest.mark.usefixtures("fake")
def test_a_job_that_ended_before_its_run_began_is_told_by_its_log(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = tmp_path_factory.mktemp("jobs") / "log.out"
    log.write_text("module: not found\nlaunch.setup failed with exit code 1: module load cudda\n")
    monkeypatch.setattr(slurm, "log_file", lambda run_dir, rank=0: log)
    assert forge.train.main([*JOBS, "run.dir=mine", "launch.wait=true"]) == 1
    said = [
        "module: not found",
        "launch.setup failed with exit code 1: module load cudda",
        f"({log})",
    ]
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "the run did not finish:",
        *(f"  | {line}" for line in said),
    ]


def test_ranks_that_have_been_started_train_where_they_are(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launch=slurm in a file of the machine's own does not submit a job from within one."""
    begun = []
    monkeypatch.setattr(processes, "start", lambda run_dir, ranks, **_: begun.append(ranks) or 0)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert forge.train.main([*JOBS, "run.dir=mine"]) == 0
    assert (begun, fake.taken) == ([1], [])


def test_python_waits_for_a_job_or_is_refused(fake: FakeSlurm) -> None:
    with pytest.raises(ConfigError) as caught:
        forge.train(forge.compose(JOBS))
    (problem,) = caught.value.problems
    assert (problem.key, problem.fix) == ("launch.wait=false", "launch.wait=true")
    assert problem.what == "forge.train gives back how the run has ended, so it waits for its job."


@pytest.mark.slow
def test_jobs_of_submitit_on_this_machine() -> None:
    two = ["parallel=ddp", "run.num_processes=2"]
    done = shell(
        "-m", *TINY, *two, "launch=submitit_local", "launch.wait=true", "seed=1,2", "sweep.name=s"
    )
    assert done.returncode == 0, done.stderr
    assert "(2 points: 2 done)" in done.stdout
    assert (
        shell(*TINY, "hydra/launcher=submitit_local", "launch.wait=true", "run.dir=one").returncode
        == 0
    )
    failing = [
        "+callbacks.t={_target_: trouble.Trouble, what: raise, rank: 0}",
        "run.trust=[trouble.]",
    ]
    path = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = shell(
        "-m",
        *TINY,
        *failing,
        "launch=submitit_local",
        "launch.wait=true",
        "seed=3",
        "sweep.name=s",
        PYTHONPATH=path,
    )
    assert done.returncode == 1
    assert "trouble of its own" in done.stdout


SLOWED = [
    "+callbacks.t={_target_: trouble.Trouble, what: raise, rank: 0, step: 1000, pause: 0.2}",
    "run.trust=[trouble.]",
]
EVAL = [
    "eval.enabled=true",
    "eval.interval=10",
    "eval.steps=1",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=4",
]
SWEEP = ["-m", *TINY, *EVAL, "train.max_steps=25", "checkpoint.interval=10", "seed=1,2,3"]


@pytest.mark.slow
def test_a_sweep_whose_command_is_killed_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    """Callbacks are free, so the slow points are the same runs. Done points are left, the one that
    was begun goes on.
    """
    environ = {
        "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    undisturbed = shell(*SWEEP, "launch.jobs=2", "sweep.name=undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stdout
    command = [sys.executable, "-m", "forge.train", *SWEEP, *SLOWED, "sweep.name=killed"]
    process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE)
    second = _begun(Path("sweeps/killed"), process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while ranks := [
        pid
        for pid in os.listdir("/proc")
        if pid.isdecimal() and str(tmp_path / "sweeps").encode() in _command(pid)
    ]:
        assert time.monotonic() < deadline, ranks
        time.sleep(0.1)
    again = shell(*SWEEP, *SLOWED, "sweep.name=killed", **environ)
    assert again.returncode == 0, again.stdout
    assert "(3 points: 1 done, 1 to go on, 1 to start)" in again.stdout
    ours, theirs = (
        sorted(Path("sweeps", name, "points").iterdir()) for name in ("undisturbed", "killed")
    )
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
        rows = [
            file
            for file in place.glob("points/001*/metrics.jsonl")
            if len(file.read_text().splitlines()) > 2
        ]
        if rows:
            return rows[0].parent
        time.sleep(0.05)


def _command(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""
