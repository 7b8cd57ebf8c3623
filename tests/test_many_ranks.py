"""Runs of several ranks by subprocess: started by forge, by torchrun and by srun; failing, killed,
hanging and told to stop.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TINY

from forge.launch.local.processes import free_port
from forge.rundir.files import read_json, read_rows
from forge.rundir.outcome import NO_REASON, attempts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
SMALL = [*TINY, "model.n_layers=1", "parallel=fsdp"]
TROUBLE = ["+callbacks.trouble._target_=trouble.Trouble", "run.trust=[trouble.]"]
ENDLESS = ["train.max_steps=1000000"]
Command = list[str]


@pytest.fixture
def train(text_file: Path, tmp_path: Path) -> Command:
    """forge.train of a small model into tmp_path/run on two ranks."""
    place = ["data=text", f"data.path={text_file}", f"run.dir={tmp_path / 'run'}"]
    return ["-m", "forge.train", *place, *SMALL, "run.num_processes=2"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def launched(text_file: Path, tmp_path: Path) -> Command:
    """forge.train of a small model into a directory below tmp_path/runs, for other launchers."""
    place = ["data=text", f"data.path={text_file}", f"run.root={tmp_path / 'runs'}"]
    return ["-m", "forge.train", *place, *SMALL]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python with these arguments; what is left of it and of its descendants is killed, and
    fails the test.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environ: str) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(paths), "FORGE_TEST_MARK": str(tmp_path)} | environ
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words, place = [sys.executable, *arguments], Path(__file__).parents[1]
        processes.append(subprocess.Popen(words, env=env, text=True, cwd=place, **both))
        return processes[-1]

    yield start
    left = marked(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.communicate()
    assert not left, f"{len(left)} processes were left behind"


def processes() -> list[tuple[int, list[bytes], list[bytes]]]:
    """Process, arguments and environment of all that may be read, the oldest first."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError):
            files = (Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ"))
            found.append((pid, *(file.read_bytes().split(b"\0") for file in files)))
    return found


def marked(tmp_path: Path, seconds: float = 8.0) -> list[int]:
    """Processes of this test that still live after so long."""
    deadline, mark = time.monotonic() + seconds, f"FORGE_TEST_MARK={tmp_path}".encode()
    while True:
        found = [pid for pid, _, env in processes() if mark in env and pid != os.getpid()]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


def ranks_of(run_dir: Path) -> dict[int, int]:
    """Process by rank, without loader processes, which came later."""
    found: dict[int, int] = {}
    for pid, arguments, env in processes():
        if arguments[1:4] == [b"-m", b"forge.worker", str(run_dir).encode()]:
            for rank in (int(one[5:]) for one in env if one.startswith(b"RANK=")):
                found.setdefault(rank, pid)
    return found


def end(process: subprocess.Popen[str], seconds: float = 90.0) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def steps(run_dir: Path) -> list[int]:
    return [row["step"] for row in read_rows(run_dir / "metrics.jsonl")]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def only_run(root: Path) -> Path:
    """The one run directory under a root."""
    (path,) = root.iterdir()
    return path


def trouble(what: str, **options) -> Command:
    """A run without end in which rank 1 has trouble at step 3, see trouble.py."""
    given = [f"+callbacks.trouble.{name}={value}" for name, value in options.items()]
    return [*TROUBLE, *ENDLESS, f"+callbacks.trouble.what={what}", *given]


def test_one_command_starts_its_ranks_and_one_that_has_finished_says_so(train, spawn, run):
    code, out, err = end(spawn(*train, "train.nccl_health_check_interval=2"))
    assert (code, err) == (0, "")  # no rank speaks twice, torch has nothing to complain of
    said = [line for line in out.splitlines() if not line.startswith("data: ")]
    assert said == [f"run directory: {run}", f"resume with: python -m forge.resume {run}"]
    assert steps(run) == [1, 2, 3, 4, 5, 6]
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["rank_0.log", "rank_1.log"]
    code, out, err = end(spawn(*train, "train.nccl_health_check_interval=2"))
    assert (code, err) == (0, "")
    assert "this run is finished: all steps done, after 6 steps" in out


@pytest.mark.nightly
@pytest.mark.parametrize(("asked", "recorded"), [("[1]", [1]), ("[]", [0, 1])])
def test_each_rank_that_is_asked_records_a_trace_of_its_own(asked, recorded, train, spawn, run):
    window = ["profiling=on", "profiling.start_step=2", "profiling.end_step=3"]
    code, _, err = end(spawn(*train, *window, f"profiling.ranks={asked}"))
    assert code == 0, err
    traces = run / "profiler_traces"
    files = sorted(str(path.relative_to(traces)) for path in traces.rglob("*.*"))
    assert files == [f"rank_{rank}/steps_2_to_3.json.gz" for rank in recorded]
    found = [json.loads(gzip.decompress((traces / file).read_bytes())) for file in files]
    assert [trace["distributedInfo"]["rank"] for trace in found] == recorded


def test_a_rank_that_raises_is_reported_with_its_own_traceback(train, spawn, run):
    """Not the error of the main rank, which loses its peer."""
    code, _, err = end(spawn(*train, *trouble("raise")))
    assert code == 1
    shown = "callbacks.trouble (trouble.Trouble) failed in on_step_end at step 3"
    shown += ": KeyError: 'trouble of its own'"
    again = f"the run continues with: python -m forge.resume {run} 'run.trust=[trouble.]'"
    place = f"(the traceback is in {run}/error.json; {again})"
    assert err == f"\nrank 1 of 2: {shown}\n{place}\n"
    error = read_json(run / "error.json")
    assert (error["rank"], error["type"], error["message"]) == (1, "CallbackError", shown)
    assert "in on_step_end" in error["traceback"]
    assert [line["status"] for line in attempts(run) if line["event"] == "end"] == ["failed"]


@pytest.mark.nightly
def test_one_of_four_is_killed_and_the_same_command_goes_on(train, spawn, run, tmp_path):
    four = ["run.num_processes=4", "train.batch_size=1", "checkpoint.interval=2"]
    command = [*train, *trouble("SIGCONT", pause=0.1), *four, "train.max_steps=16"]
    process = spawn(*command)
    wait_for(lambda: len(steps(run)) > 4)
    os.kill(ranks_of(run)[3], signal.SIGKILL)
    began = time.monotonic()
    said = process.stderr.readline()
    assert time.monotonic() - began < 5
    assert said == (
        "rank 3 of 4 was ended by SIGKILL (out of memory? lower train.batch_size); "
        f"the run continues with: python -m forge.resume {run} 'run.trust=[trouble.]'\n"
    )
    code, _, err = end(process, 15)
    assert (code, "Traceback" in err) == (137, False)
    error = read_json(run / "error.json")
    assert (error["rank"], error["type"]) == (3, "SIGKILL")
    assert not marked(tmp_path)
    code, out, err = end(spawn(*command))
    assert code == 0, err
    said = r"resuming from checkpoints/step_\d+ at step \d+, where it stopped in the data"
    assert re.search(said, out)
    assert read_json(run / "result.json")["step"] == max(steps(run)) == 16
    assert not (run / "error.json").exists()


@pytest.mark.nightly
def test_a_signal_to_one_rank_stops_all_after_the_same_step(train, spawn, run):
    """Without agreement one rank would save while the other trains on."""
    code, _, err = end(spawn(*train, *trouble("SIGUSR1")))
    assert code == 128 + signal.SIGUSR1
    assert "SIGUSR1" in err
    result = read_json(run / "result.json")
    assert (result["status"], result["reason"], result["step"]) == ("stopped", "SIGUSR1", 4)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_4"]
    assert [line["step"] for line in attempts(run) if line["event"] == "end"] == [4]


@pytest.mark.nightly
@pytest.mark.parametrize(("what", "seconds"), [("SIGCONT", 60), ("hang", 3)])
def test_a_command_that_is_killed_leaves_no_rank_and_no_loader(
    what, seconds, train, spawn, run, tmp_path
):
    """Ranks that can save do; those that wait for one that hangs end when their time is over."""
    more = [f"train.shutdown_timeout_sec={seconds}", "data.num_workers=1"]
    process = spawn(*train, *trouble(what, pause=0.02), *more)
    wait_for(lambda: len(steps(run)) >= 3)
    time.sleep(0.5)
    assert len(marked(tmp_path, 0)) == 5  # the command, two ranks, and the loader of each
    process.kill()
    process.communicate()
    assert not marked(tmp_path, 30)
    assert (run / "checkpoints").exists() == (what == "SIGCONT")


@pytest.mark.nightly
def test_a_rank_that_hangs_is_named(train, spawn, run):
    check = ["train.nccl_health_check_interval=1", "parallel.nccl_timeout_sec=2"]
    code, _, err = end(spawn(*train, *trouble("hang"), *check))
    assert code == 1
    said = "no sign of life from rank 1 of 2 at step 3 within parallel.nccl_timeout_sec=2"
    said += "; see logs/rank_1.log"
    assert said in err
    assert "Traceback" not in err
    error = read_json(run / "error.json")
    assert (error["rank"], error["message"]) == (0, said)


@pytest.mark.nightly
def test_a_collective_takes_no_longer_than_its_timeout(train, spawn, run):
    """Without the sign of life too, in the groups of the mesh as in that of all."""
    process = spawn(*train, *trouble("hang"), "parallel.nccl_timeout_sec=2")
    wait_for(lambda: len(steps(run)) >= 3)
    code, _, err = end(process, 20)
    assert code == 1
    assert read_json(run / "error.json")["rank"] == 0
    assert re.search(rf"^{re.escape(NO_REASON)}.*\n.*Timed out waiting 2000ms", err, re.MULTILINE)
    assert "Traceback" not in err


def torchrun(*arguments: str) -> Command:
    return ["-m", "torch.distributed.run", *arguments]


@pytest.mark.nightly
def test_torchrun(launched, spawn, tmp_path):
    """One directory, one voice, and forge.resume continues there as well."""
    local = torchrun("--standalone", "--nproc-per-node", "2")
    code, out, err = end(spawn(*local, *launched))
    assert code == 0, err
    run = only_run(tmp_path / "runs")
    assert out.count("run directory: ") == 1
    assert steps(run) == [1, 2, 3, 4, 5, 6]
    assert len(list((run / "logs").iterdir())) == 2
    longer = ["train.max_steps=8", "scheduler.decay_steps=4"]
    code, out, err = end(spawn(*local, "-m", "forge.resume", str(run), *longer))
    assert code == 0, err
    assert out.count("changed: train.max_steps=8") == 1
    assert steps(run)[-2:] == [7, 8]


@pytest.mark.nightly
def test_two_nodes(launched, spawn, tmp_path):
    node = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
    node += ["--master-port", str(free_port())]
    both = [spawn(*torchrun(*node, "--node-rank", rank), *launched) for rank in "01"]
    outcomes = [end(process) for process in both]
    assert [code for code, *_ in outcomes] == [0, 0], outcomes
    assert steps(only_run(tmp_path / "runs")) == [1, 2, 3, 4, 5, 6]
    assert outcomes[1][1] == ""


def started_by_srun(spawn, command: Command) -> list[tuple[int, str, str]]:
    """Both tasks of a step, with the variables that Slurm 22.05 sets."""
    job = {"SLURM_JOB_ID": str(random.randrange(10**6)), "SLURM_STEP_ID": "0"}
    job |= dict.fromkeys(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "2")
    job |= dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), "localhost")
    tasks = [spawn(*command, **job, SLURM_PROCID=task, SLURM_LOCALID=task) for task in "01"]
    return [end(task) for task in tasks]


@pytest.mark.nightly
def test_srun(launched, spawn, tmp_path):
    outcomes = started_by_srun(spawn, launched)
    assert [(code, err) for code, _, err in outcomes] == [(0, ""), (0, "")]
    assert outcomes[1][1] == ""
    assert steps(only_run(tmp_path / "runs")) == [1, 2, 3, 4, 5, 6]


def test_ranks_of_srun_are_refused_once(launched, spawn, tmp_path):
    outcomes = started_by_srun(spawn, [*launched, "model.dmi=8"])
    assert [(code, out) for code, out, _ in outcomes] == [(2, ""), (2, "")]
    assert outcomes[0][2].splitlines() == [
        "1 problem; nothing was started or written.",
        "  1. model.dmi=8   [command line]",
        "     Decoder has no option 'dmi'.",
        "     -> did you mean model.dim=8?",
    ]
    assert outcomes[1][2] == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_ranks_of_srun_leave_nothing_of_a_run_that_is_refused(launched, spawn, tmp_path):
    """The main rank removes the directory once the others have left it."""
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    outcomes = started_by_srun(spawn, [*launched, f"data.path={tmp_path / 'bad.txt'}"])
    assert [code for code, *_ in outcomes] == [2, 2]
    _, what, removed = outcomes[0][2].splitlines()
    assert what.startswith(f"data.path: {tmp_path}/bad.txt is not UTF-8 text (invalid start byte")
    assert removed == "(nothing was trained, and the run directory is removed again)"
    assert outcomes[1][1:] == ("", "")
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_a_sweep_is_refused_under_a_launcher(launched, spawn):
    outcomes = started_by_srun(spawn, [*launched, "-m", "seed=1,2"])
    assert [code for code, *_ in outcomes] == [2, 2]
    said = "another launcher has started the ranks, and a sweep starts those of each point itself."
    assert said in outcomes[0][2]
    assert outcomes[1][2] == ""
