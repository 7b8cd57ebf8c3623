"""The local launcher: exit codes and signals pass through, and no worker is left behind."""

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

from forge.launch.local import processes

Stub = Callable[[str], str]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """An interpreter that runs this code, whatever it is asked to run; RUN_DIR is its last
    argument.
    """

    def make(code: str) -> str:
        script = tmp_path / "python"
        script.write_text(
            f"#!{sys.executable}\nimport os, signal, sys, time\nfrom pathlib import Path\nRUN_DIR = Path(sys.argv[-1])\n{code}\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return str(script)

    return make


@pytest.fixture
def start(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """local.start, with this code in the worker's place."""

    def run(code: str) -> int:
        monkeypatch.setattr(processes.sys, "executable", stub(code))
        return processes.start(tmp_path)

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


@pytest.mark.parametrize("code", [0, 1, 2, 130, 143])
def test_the_exit_code_is_the_workers(code: int, start: Callable[[str], int]):
    assert start(f"sys.exit({code})") == code


def test_the_worker_is_told_its_rank_and_directory(start: Callable[[str], int], tmp_path: Path):
    environ = "' '.join(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'))"
    start(f"(RUN_DIR / 'seen').write_text({environ} + ' ' + ' '.join(sys.argv[1:]))")
    assert (tmp_path / "seen").read_text() == f"0 0 1 -m forge.worker {tmp_path}"


@pytest.mark.parametrize(
    ("name", "hint"), [("SIGKILL", " (out of memory? lower train.batch_size)"), ("SIGSEGV", "")]
)
def test_a_worker_that_a_signal_ends_is_reported(
    name: str, hint: str, start: Callable[[str], int], tmp_path: Path, capfd
):
    assert start(f"os.kill(os.getpid(), signal.{name})") == 128 + signal.Signals[name]
    assert (
        capfd.readouterr().err
        == f"the worker was ended by {name}{hint}; the run goes on with: python -m forge.resume {tmp_path}\n"
    )


def test_a_worker_that_said_itself_what_happened_is_not_reported_again(
    start: Callable[[str], int], capfd
):
    assert (
        start("(RUN_DIR / 'error.json').write_text('{}'); os.kill(os.getpid(), signal.SIGABRT)")
        == 134
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on(name: str, start: Callable[[str], int], tmp_path: Path):
    code = f"""
signal.signal(signal.{name}, lambda *_: ((RUN_DIR / 'got').write_text('{name}'), sys.exit(7)))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
(RUN_DIR / 'ready').write_text('')
time.sleep(20)
"""

    def send() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.Signals[name])

    threading.Thread(target=send).start()
    assert start(code) == 7
    assert (tmp_path / "got").read_text() == name


def test_an_interrupt_waits_until_python_has_started(
    start: Callable[[str], int], tmp_path: Path, capfd
):
    """Without the traceback of whatever Python was importing."""
    code = """
from forge.worker import end_on_interrupt
(RUN_DIR / 'ready').write_text('')
while signal.SIGINT not in signal.sigpending(): time.sleep(0.01)
end_on_interrupt()
time.sleep(20)
"""

    def interrupt() -> None:
        wait_for((tmp_path / "ready").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert start(code) == 130
    said = (
        f"the worker was ended by SIGINT; the run goes on with: python -m forge.resume {tmp_path}\n"
    )
    assert capfd.readouterr().err == said
    assert not (tmp_path / "error.json").exists()


def test_what_is_ignored_stays_so_but_for_interrupts(monkeypatch: pytest.MonkeyPatch):
    """nohup ignores SIGHUP on purpose, a shell SIGINT for whatever a script starts in the
    background.
    """
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert processes.heard() == [signal.SIGINT]


def test_the_parents_own_handlers_come_back(start: Callable[[str], int]):
    before = [signal.getsignal(number) for number in processes.STOPPING]
    start("")
    assert [signal.getsignal(number) for number in processes.STOPPING] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_it_works_in_another_thread(start: Callable[[str], int]):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(start("sys.exit(3)")))
    thread.start()
    thread.join()
    assert codes == [3]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_killed_parent_leaves_no_worker(stub: Stub, tmp_path: Path):
    worker = """
from forge.worker import die_with_parent
die_with_parent()
(RUN_DIR / 'pid').write_text(str(os.getpid()))
time.sleep(60)
"""
    parent = """
import sys
from pathlib import Path
from forge.launch import local
run_dir, sys.executable = Path(sys.argv[1]), sys.argv[2]
processes.start(run_dir)
"""
    process = subprocess.Popen([sys.executable, "-c", parent, str(tmp_path), stub(worker)])
    pid = read_pid(tmp_path / "pid")
    assert alive(pid)
    process.kill()
    process.wait()
    wait_for(lambda: not alive(pid))


def test_the_worker_imports_from_where_its_parent_does(
    start: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "only_here.py").write_text("")
    monkeypatch.syspath_prepend("mine")
    assert start("import only_here") == 0
    monkeypatch.undo()
    assert start("import only_here") == 1


def test_python_itself_is_not_on_the_workers_path() -> None:
    inherited = [p for p in processes.search_path().split(os.pathsep) if p]
    assert not [
        p for p in inherited if (Path(p) / "encodings").exists() or (Path(p) / "torch").exists()
    ]
