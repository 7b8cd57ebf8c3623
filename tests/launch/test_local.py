"""The local launcher: exit codes, words and signals pass through, ranks share the cores, and no
worker outlives its run.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.launch.local import processes, threads

Start = Callable[..., int]
PID = "(RUN_DIR / f'pid{rank}').write_text(str(os.getpid()))\n"
HEAD = f"""#!{sys.executable}
import os, signal, sys, time
from pathlib import Path
RUN_DIR, rank = Path(sys.argv[-1]), int(os.environ['RANK'])
"""
FAIL = """
from forge.rundir.outcome import record_failure as record
record(RUN_DIR, rank=rank, kind='KeyError', message='wk', trace='t', said='rank 1 failed', code=1)
sys.exit(1)
"""


def stub(folder: Path, code: str) -> str:
    """An interpreter that runs this code, whatever it is asked to run."""
    script = folder / "python"
    script.write_text(f"{HEAD}{code}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """processes.start of some ranks, with this code in the worker's place."""

    def run(code: str, ranks: int = 1) -> int:
        monkeypatch.setattr(processes.sys, "executable", stub(tmp_path, code))
        return processes.start(tmp_path, ranks)

    return run


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def read_pid(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text() != "")
    return int(file.read_text())


def signal_when(ready: Callable[[], object], number: int) -> None:
    """Send this process a signal, from a thread, once something is there."""

    def send() -> None:
        wait_for(lambda: bool(ready()))
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()


@pytest.mark.parametrize("code", [0, 2, 143])
def test_the_exit_code_is_the_workers(code: int, start: Start) -> None:
    """In another thread too, where Python takes no signals."""
    assert start(f"sys.exit({code})") == code
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(start(f"sys.exit({code})")))
    thread.start()
    thread.join()
    assert codes == [code]


def test_each_rank_has_its_variables_and_a_log(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And where the log cannot be opened, the run continues."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")
    code = f"print(*(os.environ.get(name, '-') for name in {names}), *sys.argv[1:-1])\n"
    code += "sys.stdout.flush(); print(os.environ['MASTER_PORT'], file=sys.stderr)"
    assert start(code, 3) == 0
    logs = [(tmp_path / "logs" / f"rank_{rank}.log").read_text() for rank in (1, 2)]
    seen = ["".join(capfd.readouterr()), *logs]
    lines = [text.splitlines() for text in seen]
    wanted = [f"{rank} {rank} 3 127.0.0.1 - -m forge.worker" for rank in range(3)]
    assert [words for words, _ in lines] == wanted
    assert len({port for _, port in lines}) == 1
    (tmp_path / "logs").rename(tmp_path / "others")
    (tmp_path / "logs").write_text("in the way")
    assert start("print(rank)", 2) == 0


@pytest.mark.parametrize("first", [0, 1, 2])
def test_whichever_rank_dies_the_others_are_ended(
    first: int,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)
    die = f"os.kill(os.getpid(), signal.SIGKILL) if rank == {first} else time.sleep(60)"
    assert start(PID + die, 3) == 137
    hint = " (out of memory? lower train.batch_size)"
    again = "the run continues with: python -m forge.resume .\n"
    assert capfd.readouterr().err == f"rank {first} of 3 was ended by SIGKILL{hint}; {again}"
    assert not [file for file in tmp_path.glob("pid*") if alive(int(file.read_text()))]
    assert start("os.kill(os.getpid(), signal.SIGSEGV)") == 139
    assert capfd.readouterr().err == f"the worker was ended by SIGSEGV; {again}"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        # the main rank, which only lost the other, ends first
        ("while rank == 0 and not (RUN_DIR / 'error.json').exists(): time.sleep(0.01)\n", 1, True),
        # it was the main rank, whose words the terminal has
        ("rank = 0\n", 1, False),
        # an abort after the reason, as by NCCL
        ("if rank == 0: time.sleep(60)\nsys.exit = lambda code: os.abort()\n", 134, True),
    ],
)
def test_the_first_reason_of_a_rank_is_said_once(
    code: str, status: int, said: bool, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    own = "if os.environ['RANK'] == '0': sys.exit(1)\n" if said and status == 1 else ""
    assert start(code + own + FAIL, 2) == status
    assert capfd.readouterr().err == ("rank 1 failed\n" if said else "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on_and_handlers_come_back(
    name: str, start: Start, tmp_path: Path
) -> None:
    code = f"""
signal.signal(signal.{name}, lambda *_: sys.exit(7))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
(RUN_DIR / 'ready').write_text('')
time.sleep(20)
"""
    before = [signal.getsignal(number) for number in processes.STOPPING]
    signal_when((tmp_path / "ready").exists, signal.Signals[name])
    assert start(code) == 7
    assert [signal.getsignal(number) for number in processes.STOPPING] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_an_interrupt_waits_until_python_has_started(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without the traceback of whatever Python was importing."""
    code = """
from forge.worker import end_on_interrupt
(RUN_DIR / 'ready').write_text('')
while signal.SIGINT not in signal.sigpending(): time.sleep(0.01)
end_on_interrupt()
time.sleep(20)
"""
    signal_when((tmp_path / "ready").exists, signal.SIGINT)
    assert start(code) == 130
    assert capfd.readouterr().err.startswith("the worker was ended by SIGINT; the run continues")
    assert not (tmp_path / "error.json").exists()


def test_a_signal_before_the_ranks_listen_ends_all_and_is_no_failure(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = f"if rank: signal.signal(signal.SIGTERM, lambda *_: None)\n{PID}time.sleep(60)"
    signal_when(lambda: len(list(tmp_path.glob("pid*"))) == 2, signal.SIGTERM)
    began = time.monotonic()
    assert start(code, 2) == 143
    assert time.monotonic() - began < processes.GRACE
    assert "was ended by SIGTERM" in capfd.readouterr().err
    assert not (tmp_path / "error.json").exists()
    wait_for(lambda: not any(alive(read_pid(tmp_path / f"pid{rank}")) for rank in (0, 1)))


def test_what_is_ignored_stays_so_but_for_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """nohup ignores SIGHUP on purpose, a shell SIGINT for what a script starts in the
    background.
    """
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert processes.stop_signals() == [signal.SIGINT]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_killed_parent_leaves_no_worker(tmp_path: Path) -> None:
    code = f"from forge.worker import die_with_parent\ndie_with_parent()\n{PID}time.sleep(60)"
    parent = "import sys; from pathlib import Path; from forge.launch.local import processes; "
    parent += "path, sys.executable = Path(sys.argv[1]), sys.argv[2]; processes.start(path)"
    worker = stub(tmp_path, code)
    process = subprocess.Popen([sys.executable, "-c", parent, str(tmp_path), worker])
    pid = read_pid(tmp_path / "pid0")
    assert alive(pid)
    process.kill()
    process.wait()
    wait_for(lambda: not alive(pid))


def test_the_worker_imports_from_where_its_parent_does(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "only_here.py").write_text("")
    monkeypatch.syspath_prepend("mine")
    assert start("import only_here") == 0
    monkeypatch.undo()
    assert start("import only_here") == 1
    for folder in filter(None, processes.search_path().split(os.pathsep)):
        assert not (Path(folder) / "encodings").exists(), "Python itself is not on the path"


def test_no_connection_is_given_the_port_of_the_ranks() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(processes.free_port() < lowest for _ in range(20))


@pytest.mark.parametrize(
    ("count", "environ", "each"),
    [(2, {}, "4"), (3, {}, "2"), (9, {}, "1"), (1, {}, None), (2, {threads.COUNT: "7"}, None)],
)
def test_processes_share_the_cores(
    count: int, environ: dict[str, str], each: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has what torch chooses, and what the user has set stays."""
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    assert threads.shared(count, environ).get(threads.COUNT) == each


@pytest.mark.parametrize(
    ("environ", "each"),
    [
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, "8"),
        ({"SLURM_CPUS_ON_NODE": "1", "SLURM_NTASKS_PER_NODE": "4"}, "1"),
        ({"SLURM_CPUS_ON_NODE": "8", threads.COUNT: "7"}, None),
        ({}, None),
    ],
)
def test_a_task_of_slurm_has_its_share_of_the_node(
    environ: dict[str, str], each: str | None
) -> None:
    assert threads.of_task(environ).get(threads.COUNT) == each


def test_torch_takes_the_share_of_two_runs_of_two_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable alone, which OpenMP reads as torch is imported."""
    monkeypatch.delenv(threads.COUNT, raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 4)
    code = "import os, sys, torch, pathlib\nrank = os.environ['RANK']\n"
    code += "pathlib.Path(sys.argv[1], rank).write_text(str(torch.get_num_threads()))\n"
    (tmp_path / "share.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert processes.Ranks(tmp_path, 2, module="share", at_a_time=2).wait() == 0
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["1", "1"]
