"""Points of a sweep on this machine: so many at a time, devices of their own, one line each,
stopped together, and gone on with.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fake_worker
import pytest
from test_local import alive, wait_for

from forge.launch.local import processes, threads
from forge.launch.sweep import local as local_points
from forge.launch.sweep import sweep
from forge.launch.sweep.directory import SweepDirectory
from forge.planning.world import Devices
from forge.rundir.lock import Lock

SHORT = ["train.max_steps=5", "scheduler.warmup_steps=1", "sweep.name=mine"]
SMALL = [*SHORT, "run.device=cpu", "parallel=single"]
BASE = Path("sweeps/mine")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(processes.sys, "executable", fake_worker.interpreter(tmp_path / "bin"))


def run(*overrides: str) -> int:
    return sweep.run_sweep([*SMALL, *overrides])


def points() -> list[Path]:
    return sorted((BASE / "points").iterdir())


def starts() -> list[int]:
    return [len((path / "started").read_text().splitlines()) for path in points()]


def started() -> list[list]:
    """The GPUs, time and threads of each point when it started."""
    return [json.loads((path / "started").read_text().splitlines()[-1]) for path in points()]


def ended() -> list[float]:
    return [json.loads((path / "ended").read_text().splitlines()[-1]) for path in points()]


def test_a_sweep_to_its_end_then_again_then_with_more_values(capfd: Capture) -> None:
    assert run("seed=1,2") == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert re.sub(r"\d+ s\b", "0 s", out) == (
        "sweep: sweeps/mine   (2 points: 2 to start)\n"
        "  watch it with: python -m forge.status sweeps/mine --watch\n"
        "#000 starts    seed=1\n"
        "#000 done      seed=1   train/loss 1, 3 steps, 0 s\n"
        "#001 starts    seed=2\n"
        "#001 done      seed=2   train/loss 0.5, 3 steps, 0 s\n"
        "\nsweep: sweeps/mine   (2 points: 2 done)\n"
    )
    assert [path.name.rpartition("_")[0] for path in points()] == ["000_seed-1", "001_seed-2"]
    assert (points()[0] / "logs" / "output.log").read_text() == "rank 0 says hello\n"
    assert json.loads((points()[0] / "overrides.json").read_text()) == [*SMALL, "seed=1"]
    assert run("seed=1,2") == 0
    again = "sweep: sweeps/mine   (2 points: 2 done)\n"
    assert capfd.readouterr().out == f"{again}\n{again}"
    assert run("seed=3,2") == 0
    one_more = "(2 points: 1 to start, 1 done; 1 other of earlier commands)"
    assert one_more in capfd.readouterr().out
    assert starts() == [1, 1, 1]
    directory = SweepDirectory(BASE)
    assert [point.varied for point in directory.points()] == [{"seed": seed} for seed in "123"]
    assert len(directory.commands()) == 3


@pytest.mark.ci("2-4")
@pytest.mark.parametrize(("jobs", "share"), [(1, None), (2, "4"), (9, "2")])
def test_so_many_at_a_time_with_a_share_of_the_cores(
    jobs: int, share: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "4" if jobs > 1 else "1")  # all start before one ends
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    count = min(jobs, 4)
    assert run(f"seed=range(1,{5 if jobs > 1 else 3})", f"launch.jobs={jobs}") == 0
    spans = [(begin, end) for (_, begin, _), end in zip(started(), ended(), strict=True)]
    assert max(sum(one <= moment < end for one, end in spans) for moment, _ in spans) == count
    assert {each for _, _, each in started()} == {share}


def test_points_at_a_time_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(gpus=4, source="the test", torch=(2, 11))
    monkeypatch.setattr(sweep, "find_devices", lambda: devices)
    monkeypatch.setattr(local_points, "POLL", 0.01)
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    batch = ["train.global_batch_size=4", "train.batch_size=1"]
    assert sweep.run_sweep([*SHORT, *batch, "seed=1,2,3", "launch.jobs=2"]) == 0
    spans = [(gpus, begin, end) for (gpus, begin, _), end in zip(started(), ended(), strict=True)]
    assert {gpus for gpus, _, _ in spans} == {"4,5", "6,7"}
    for mine, start, _ in spans:
        assert [gpus for gpus, begin, end in spans if begin <= start < end].count(mine) == 1


def test_points_that_fail_are_shown_left_and_retried(capfd: Capture) -> None:
    command = f"seed={fake_worker.FAILS},1,{fake_worker.BREAKS},{fake_worker.DIES}"
    assert run(command) == 1
    out = re.sub(r"\d+ s\b", "0 s", capfd.readouterr().out)
    assert (
        "#000 FAILED    seed=13   after 0 s\n     | RuntimeError: it cannot continue\n"
        "     | (the traceback is somewhere)\n#001 starts"
    ) in out
    words = ["rank 0 says hello", "one", "two", "three"]
    lines = "".join(f"     | {word}\n" for word in words)
    assert f"#002 FAILED    seed=66   after 0 s\n{lines}" in out
    killed = "the worker was ended by SIGKILL (out of memory? lower train.batch_size)"
    killed += "; the run continues with: python -m forge.resume "
    folders = {path.name[:3]: f"sweeps/mine/points/{path.name}" for path in points()}
    listed = (
        f"  #000 failed    seed=13\n       it cannot continue\n       {folders['000']}\n"
        f"  #002 failed    seed=66\n       three\n       {folders['002']}\n"
        f"  #003 failed    seed=77\n       {killed}{folders['003']}\n       {folders['003']}\n"
        "  the same command with sweep.retry=true runs them again\n"
    )
    assert out.endswith(f"\nsweep: sweeps/mine   (4 points: 3 failed, 1 done)\n{listed}")
    assert run(command) == 1
    out = capfd.readouterr().out
    left = "3 that failed or were cancelled; sweep.retry=true runs them again"
    assert f"  left as they are: {left}\n" in out
    assert "  #000 failed    seed=13\n       it cannot continue\n" in out
    assert starts() == [1, 1, 1, 1]
    assert run(f"seed={fake_worker.FAILS},1", "sweep.retry=true") == 1
    assert starts() == [2, 1, 1, 1]


def background(*overrides: str) -> subprocess.Popen[str]:
    """The same in a process of its own, with this test's interpreter for the ranks."""
    code = "import sys; from forge.launch.sweep import sweep; "
    code += f"sys.executable = {str(Path('bin/python').resolve())!r}; "
    code += f"sys.exit(sweep.run_sweep({[*SMALL, *overrides]!r}))"
    real = Path(sys.prefix, "bin", "python")
    return subprocess.Popen(
        [real, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ready() -> tuple[Path, int]:
    """The point that hangs, once it does, and its process."""
    wait_for(lambda: any(file.read_text() for file in BASE.glob("points/*/ready")), 60)
    file = next(iter(BASE.glob("points/*/ready")))
    return file.parent, int(file.read_text())


@pytest.mark.ci(
    "99-SIGTERM-stopped   seed=99   train/loss 0.0101-1 partial",
    "55-SIGINT-stopped   seed=55-1 waiting",
)
@pytest.mark.parametrize(
    ("seed", "name", "line", "states"),
    [
        (fake_worker.HANGS, "SIGTERM", "stopped   seed=99   train/loss 0.0101", "1 partial"),
        (fake_worker.HANGS, "SIGINT", "stopped   seed=99   train/loss 0.0101", "1 partial"),
        (fake_worker.STARTS, "SIGINT", "stopped   seed=55", "1 waiting"),  # while Python starts
        (fake_worker.ENDS, "SIGTERM", "done      seed=44", "1 done"),  # in its last step
    ],
)
def test_a_signal_stops_what_runs_and_starts_nothing_more(
    seed: int, name: str, line: str, states: str
) -> None:
    process = background(f"seed={seed},1,2")
    point, _ = ready()
    process.send_signal(signal.Signals[name])
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signal.Signals[name]
    assert f"{name}: points that run are saved; once more ends them at once" in out
    assert f"#000 {line}" in out
    counts = "3 waiting" if states == "1 waiting" else f"{states}, 2 waiting"
    assert out.endswith(f"sweep: sweeps/mine   (3 points: {counts})\n")
    (point / "go").touch()
    assert run(f"seed={seed},1,2") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_second_command_is_refused_and_a_killed_one_taken_up_again(capfd: Capture) -> None:
    command = f"seed=1,{fake_worker.HANGS},2"
    process = background(command)
    point, pid = ready()
    with pytest.raises(ValueError) as caught:
        run("seed=7")
    (problem,) = caught.value.problems  # type: ignore[attr-defined]
    assert problem.what.startswith(f"{BASE.resolve()} is in use by process {process.pid} on ")
    assert problem.fix == "Wait for it, or end it: python -m forge.cancel sweeps/mine"
    process.kill()
    process.wait()
    (point / "go").touch()
    assert run(command) == 0
    assert not alive(pid)
    out = capfd.readouterr().out
    assert "sweep: sweeps/mine   (3 points: 3 done)" in out
    assert "#000 starts" not in out
    assert starts() == [1, 2, 1]


def test_a_point_that_something_else_works_on_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    assert run("seed=1") == 0
    (points()[0] / "result.json").unlink()
    monkeypatch.setattr(local_points, "PATIENCE", 0.3)
    with Lock(points()[0]):
        assert run("seed=1") == 0
    out = capfd.readouterr().out
    assert re.search(r"#000 left      point   at work elsewhere: process \d+ on ", out)


def test_a_point_whose_directory_cannot_be_made_fails_alone(capfd: Capture) -> None:
    assert run("seed=1") == 0
    for name in ("config.yaml", "result.json", "attempts.jsonl", "provenance.json"):
        (points()[0] / name).unlink()
    (points()[0] / "config.yaml").mkdir()
    assert run("seed=1,2") == 1
    out = capfd.readouterr().out
    assert "#000 FAILED" in out
    assert "#001 done" in out


def test_cancelled_while_it_waits_or_runs(capfd: Capture) -> None:
    def cancel() -> None:
        _, pid = ready()
        for number in (0, 1):
            SweepDirectory(BASE).note("cancelled", number)
        os.kill(pid, signal.SIGTERM)

    command = f"seed={fake_worker.HANGS},1,2"
    thread = threading.Thread(target=cancel)
    thread.start()
    assert run(command) == 0
    thread.join()
    out = capfd.readouterr().out
    assert "#000 cancelled seed=99   train/loss 0.0101, 3 steps" in out
    assert "#001 cancelled seed=1\n" in out
    assert out.endswith("(3 points: 2 cancelled, 1 done)\n")
    assert run(command) == 0
    assert "left as they are: 2 that failed or were cancelled" in capfd.readouterr().out
    (points()[0] / "go").touch()
    assert run(command, "sweep.retry=true") == 0
    assert capfd.readouterr().out.endswith("(3 points: 3 done)\n")


def test_points_of_several_ranks(capfd: Capture) -> None:
    batch = ["train.batch_size=1", "train.global_batch_size=2"]
    many = ["parallel=ddp", "run.num_processes=2", *batch]
    assert run(*many, f"seed=1,{fake_worker.FAILS}") == 1
    out = capfd.readouterr().out
    assert "#000 done" in out
    assert "     | RuntimeError: it cannot continue\n" in out


@pytest.mark.nightly
def test_another_question_does_not_come_into_the_same_directory(capfd: Capture) -> None:
    unnamed = [text for text in SMALL if not text.startswith("sweep.name")]
    root = Path("sweeps")

    def ran(*overrides: str) -> dict[str, int]:
        assert sweep.run_sweep([*unnamed, *overrides]) == 0
        return {path.name: len(SweepDirectory(path).points()) for path in sorted(root.iterdir())}

    rates = "optimizer.lr=1e-3,2e-3"
    assert ran(rates) == {"tiny": 2}
    assert ran(rates, "seed=1,2") == {"tiny": 6}, "more seeds of the same"
    assert ran("optimizer.lr=3e-3", "seed=1,2") == {"tiny": 8}, "another value of the same"
    capfd.readouterr()
    decays = "optimizer.weight_decay=0,0.1"
    assert ran(decays) == {"tiny": 8, "tiny_weight_decay": 2}
    said = "sweeps/tiny has a sweep over optimizer.lr; this one gets a directory of its own"
    assert said in capfd.readouterr().out
    assert ran(decays) == {"tiny": 8, "tiny_weight_decay": 2}, "and continues there"
    assert ran("seed=1,2")["tiny_seed"] == 2
    assert ran(decays, rates)["tiny_lr_weight_decay"] == 4
    assert ran(decays, "sweep.name=tiny")["tiny"] == 10, "a name that was given is kept"
