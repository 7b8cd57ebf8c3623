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
from forge.plan.world import Devices

SMALL = [
    "train.max_steps=5",
    "scheduler.warmup_steps=1",
    "run.device=cpu",
    "parallel=single",
    "sweep.name=mine",
]
BASE = Path("sweeps/mine")


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(processes.sys, "executable", fake_worker.interpreter(tmp_path / "bin"))


def run(*overrides: str) -> int:
    return sweep.run([*SMALL, *overrides])


def points() -> list[Path]:
    return sorted((BASE / "points").iterdir())


def times(name: str) -> list[float]:
    found = [json.loads((path / name).read_text().splitlines()[-1]) for path in points()]
    return [one[1] if isinstance(one, list) else one for one in found]


def test_a_sweep_from_its_start_to_its_end(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_the_same_command_again_does_nothing_and_a_changed_one_adds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run("seed=1,2") == 0
    before = times("started")
    assert run("seed=1,2") == 0
    assert "(2 points: 2 done)" in capfd.readouterr().out
    assert run("seed=3,2,1") == 0
    assert "(3 points: 1 to start, 2 done)" in capfd.readouterr().out
    assert times("started")[:2] == before
    assert [point.varied for point in SweepDirectory(BASE).points()] == [
        {"seed": seed} for seed in "123"
    ]
    assert len(SweepDirectory(BASE).commands()) == 3


def test_points_of_earlier_commands_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("seed=1,2") == 0
    capfd.readouterr()
    assert run("seed=3,4") == 0
    assert capfd.readouterr().out.startswith(
        "sweep: sweeps/mine   (2 points: 2 to start; 2 others of earlier commands)\n"
    )
    assert run("seed=1,2") == 0
    assert "watch it with" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("jobs", "most", "threads_each"), [(1, 1, None), (2, 2, "4"), (4, 4, "2"), (9, 4, "2")]
)
def test_so_many_at_a_time_with_a_share_of_the_cores(
    jobs: int, most: int, threads_each: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.6")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    assert run("seed=1,2,3,4", f"launch.jobs={jobs}") == 0
    spans = list(zip(times("started"), times("ended"), strict=True))
    assert max(sum(start <= moment < end for start, end in spans) for moment, _ in spans) == most
    assert {json.loads((path / "started").read_text())[2] for path in points()} == {threads_each}


def test_a_point_that_fails_is_shown_and_the_others_go_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(f"seed={fake_worker.FAILS},1,{fake_worker.BREAKS},{fake_worker.DIES}") == 1
    out = re.sub(r"\d+ s\b", "0 s", capfd.readouterr().out)
    assert (
        "#000 FAILED    seed=13   after 0 s\n     | RuntimeError: it cannot go on\n     | (the traceback is somewhere)\n#001 starts"
        in out
    )
    assert (
        "#002 FAILED    seed=66   after 0 s\n     | rank 0 says hello\n     | one\n     | two\n     | three\n"
        in out
    )
    killed = "the worker was ended by SIGKILL (out of memory? lower train.batch_size); the run goes on with: python -m forge.resume "
    folders = {path.name[:3]: f"sweeps/mine/points/{path.name}" for path in points()}
    assert out.partition("\nsweep: sweeps/mine   ")[2] == (
        "(4 points: 3 failed, 1 done)\n"
        f"  #000 failed    seed=13\n       it cannot go on\n       {folders['000']}\n"
        f"  #002 failed    seed=66\n       three\n       {folders['002']}\n"
        f"  #003 failed    seed=77\n       {killed}{folders['003']}\n       {folders['003']}\n"
        "  the same command with sweep.retry=true runs them again\n"
    )


def test_what_has_failed_is_left_until_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(f"seed={fake_worker.FAILS},1") == 1
    capfd.readouterr()
    before = (points()[0] / "started").read_text()
    assert run(f"seed={fake_worker.FAILS},1") == 1
    out = capfd.readouterr().out
    assert (
        "left as they are: 1 that failed or were cancelled; sweep.retry=true runs them again" in out
    )
    assert "  #000 failed    seed=13\n       it cannot go on\n" in out
    assert (points()[0] / "started").read_text() == before
    assert run(f"seed={fake_worker.FAILS},1", "sweep.retry=true") == 1
    assert len((points()[0] / "started").read_text().splitlines()) == 2


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(
        sweep, "find_devices", lambda: Devices(gpus=count, source="the test", torch=(2, 11))
    )
    SMALL[:] = [text for text in SMALL if not text.startswith(("run.device", "parallel"))]


def test_points_at_a_time_have_devices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_points, "POLL", 0.01)
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    kept = list(SMALL)
    gpus(monkeypatch, 4)
    try:
        assert (
            run("seed=1,2,3", "launch.jobs=2", "train.global_batch_size=4", "train.batch_size=1")
            == 0
        )
    finally:
        SMALL[:] = kept
    given = [json.loads((path / "started").read_text())[0] for path in points()]
    assert set(given) == {"4,5", "6,7"}
    spans = list(zip(times("started"), times("ended"), given, strict=True))
    for start, _, mine in spans:
        assert [other for begin, end, other in spans if begin <= start < end].count(mine) == 1


def background(*overrides: str) -> subprocess.Popen[str]:
    """The same in a process of its own, as a shell starts it: with this test's interpreter for the
    ranks.
    """
    code = f"import sys; from forge.launch import local, sweep; processes.sys.executable = {str(Path('bin/python').resolve())!r}; "
    code += f"sys.exit(sweep.run({[*SMALL, *overrides]!r}))"
    real = Path(sys.prefix, "bin", "python")
    return subprocess.Popen(
        [real, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ready() -> Path:
    """The point that hangs, once it does."""
    wait_for(lambda: any(BASE.glob("points/*/ready")), 30)
    return next(iter(BASE.glob("points/*/ready"))).parent


def pid_of(point: Path) -> int:
    wait_for(lambda: (point / "ready").read_text() != "")
    return int((point / "ready").read_text())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_what_runs_and_starts_nothing_more(name: str) -> None:
    process = background(f"seed={fake_worker.HANGS},1,2")
    point = ready()
    process.send_signal(signal.Signals[name])
    out = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + signal.Signals[name]
    assert f"{name}: points that run are saved; once more ends them at once" in out
    assert "#000 stopped   seed=99   train/loss 0.0101, 3 steps" in out
    assert out.endswith("sweep: sweeps/mine   (3 points: 1 partial, 2 waiting)\n")
    assert "#001" not in out
    (point / "go").touch()
    assert run(f"seed={fake_worker.HANGS},1,2") == 0


def test_an_interrupt_while_python_starts_is_no_failure() -> None:
    process = background(f"seed={fake_worker.STARTS},1")
    point = ready()
    pid_of(point)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=30)[0]
    assert process.returncode == 130
    assert "#000 stopped" in out
    assert out.endswith("sweep: sweeps/mine   (2 points: 2 waiting)\n")
    (point / "go").touch()
    assert run(f"seed={fake_worker.STARTS},1") == 0


def test_a_point_whose_last_step_a_signal_came_in_is_done() -> None:
    process = background(f"seed={fake_worker.ENDS},1")
    ready()
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=30)[0]
    assert "#000 done      seed=44" in out
    assert out.endswith("sweep: sweeps/mine   (2 points: 1 done, 1 waiting)\n")


def test_a_signal_that_is_ignored_stops_nothing() -> None:
    """nohup ignores SIGHUP for what it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = background(f"seed={fake_worker.HANGS},1")
    finally:
        signal.signal(signal.SIGHUP, before)
    point = ready()
    process.send_signal(signal.SIGHUP)
    os.kill(pid_of(point), signal.SIGTERM)
    assert "#001 done" in process.communicate(timeout=30)[0]
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_killed_command_leaves_no_rank_and_is_taken_up_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    process = background(f"seed=1,{fake_worker.HANGS},2")
    point = ready()
    pid = pid_of(point)
    process.kill()
    process.wait()
    (point / "go").touch()
    assert run(f"seed=1,{fake_worker.HANGS},2") == 0
    assert not alive(pid)
    out = capfd.readouterr().out
    assert "sweep: sweeps/mine   (3 points: 3 done)" in out
    assert "#000 starts" not in out
    assert [len((path / "started").read_text().splitlines()) for path in points()] == [1, 2, 1]
    assert not [
        line for line in (point / "attempts.jsonl").read_text().splitlines() if "failed" in line
    ]


def test_a_second_command_at_a_time_is_refused() -> None:
    process = background(f"seed={fake_worker.HANGS}")
    point = ready()
    try:
        with pytest.raises(ValueError) as caught:
            run("seed=1")
        (problem,) = caught.value.problems  # type: ignore[attr-defined]
        assert re.fullmatch(
            rf"{re.escape(str(BASE.resolve()))} is in use by process \d+ on \S+ since .*\.",
            problem.what,
        )
        assert problem.fix == "Wait for it, or end it: python -m forge.cancel sweeps/mine"
        assert len(SweepDirectory(BASE).points()) == 1
    finally:
        (point / "go").touch()
        process.terminate()
        process.communicate(timeout=30)


def test_a_point_that_something_else_works_on_is_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("seed=1") == 0
    (points()[0] / "result.json").unlink()
    from forge.rundir.lock import Lock

    monkeypatch.setattr(local_points, "BUSY", 0.3)
    with Lock(points()[0]):
        assert run("seed=1") == 0
    assert re.search(
        r"#000 left      point   at work elsewhere: process \d+ on ", capfd.readouterr().out
    )


def test_a_point_whose_directory_cannot_be_made_fails_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run("seed=1") == 0
    (points()[0] / "config.yaml").unlink()
    (points()[0] / "result.json").unlink()
    (points()[0] / "attempts.jsonl").unlink()
    (points()[0] / "provenance.json").unlink()
    (points()[0] / "config.yaml").mkdir()
    assert run("seed=1,2") == 1
    out = capfd.readouterr().out
    assert "#000 FAILED" in out
    assert "#001 done" in out


def test_cancelled_while_it_waits_or_runs(capfd: pytest.CaptureFixture[str]) -> None:
    def cancel() -> None:
        point = ready()
        ledger = SweepDirectory(BASE)
        for number in (0, 1):
            ledger.note("cancelled", number)
        os.kill(pid_of(point), signal.SIGTERM)

    thread = threading.Thread(target=cancel)
    thread.start()
    assert run(f"seed={fake_worker.HANGS},1,2") == 0
    thread.join()
    out = capfd.readouterr().out
    assert "#000 cancelled seed=99   train/loss 0.0101, 3 steps" in out
    assert "#001 cancelled seed=1\n" in out
    assert "#002 done" in out
    assert out.endswith("(3 points: 2 cancelled, 1 done)\n")
    capfd.readouterr()
    assert run(f"seed={fake_worker.HANGS},1,2") == 0
    assert "left as they are: 2 that failed or were cancelled" in capfd.readouterr().out
    (points()[0] / "go").touch()
    assert run(f"seed={fake_worker.HANGS},1,2", "sweep.retry=true") == 0
    assert capfd.readouterr().out.endswith("(3 points: 3 done)\n")


def test_several_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    many = [
        "parallel=ddp",
        "run.num_processes=2",
        "train.batch_size=1",
        "train.global_batch_size=2",
    ]
    assert run(*many, f"seed=1,{fake_worker.FAILS}") == 1
    out = capfd.readouterr().out
    assert "#000 done" in out
    assert "     | RuntimeError: it cannot go on\n" in out
