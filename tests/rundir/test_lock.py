"""One process at a time on a run directory: what the second is told, and when it is free again."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forge.rundir.lock import DirectoryInUse, Lock, in_use

HOLD = (
    "import sys, time; from pathlib import Path; from forge.rundir.lock import Lock; "
    "lock = Lock(Path(sys.argv[1])).acquire(); {more}; print('held', flush=True); time.sleep(60)"
)
MORE = {
    "alone": "pass",
    "os.fork": "import os; os.fork() or time.sleep(60)",
    "multiprocessing": "import multiprocessing as m; "
    "m.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
    "a subprocess": "import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False)",
}


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process, in a group of its own, that locks tmp_path and then does `more`."""
    started: list[subprocess.Popen[str]] = []

    def start(more: str = "pass") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HOLD.format(more=more), str(tmp_path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_the_second_process_is_told_of_the_first_until_that_is_killed(
    hold: Callable[..., subprocess.Popen[str]], tmp_path: Path, more: str
) -> None:
    """Children of the first that live on do not hold the lock."""
    first = hold(more)
    with pytest.raises(DirectoryInUse) as refused:
        Lock(tmp_path).acquire(patience=0)
    who = (
        rf"process {first.pid} on {re.escape(platform.node())} since \d{{4}}(-\d\d){{2}} [\d:]{{8}}"
    )
    fix = "Wait for it, end it, or give another run.dir"
    said = rf"{re.escape(str(tmp_path))} is in use by {who}. {fix}"
    assert re.fullmatch(said, str(refused.value))
    assert in_use(tmp_path)
    first.kill()
    first.wait()
    if more != "pass":
        os.killpg(first.pid, 0)  # somebody of its group is still there
    began = time.monotonic()
    with Lock(tmp_path).acquire(patience=5):
        assert time.monotonic() - began < 2
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    assert not in_use(tmp_path)


def test_a_child_neither_releases_it_nor_is_hindered(tmp_path: Path) -> None:
    with Lock(tmp_path).acquire():
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        assert child.exitcode == 0
        with pytest.raises(DirectoryInUse):
            Lock(tmp_path).acquire(patience=0)
    pid = os.fork()
    if pid == 0:
        with suppress(DirectoryInUse), Lock(tmp_path).acquire(patience=0):
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_it_waits_for_the_first_to_let_go(tmp_path: Path) -> None:
    first = Lock(tmp_path).acquire()
    threading.Timer(0.3, first.release).start()
    Lock(tmp_path).acquire(patience=5).release()


def test_it_is_free_after_release_and_after_an_error(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        raise ZeroDivisionError
    lock = Lock(tmp_path).acquire(patience=0)
    lock.release()
    lock.release()
    with Lock(tmp_path).acquire(patience=0), pytest.raises(DirectoryInUse):
        Lock(tmp_path).acquire(patience=0)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_warned_of_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with Lock(tmp_path).acquire():
        pass
    assert caplog.text.count(f"this file system has no locks ({os.strerror(number)})") == 1
    assert not in_use(tmp_path)
