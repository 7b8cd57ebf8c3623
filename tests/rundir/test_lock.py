"""One process at a time on a run directory: who is refused, with which words, and when the lock is
free again.
"""

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

from forge.rundir.lock import InUse, Lock, holder

HOLD = "import sys, time; from pathlib import Path; from forge.rundir.lock import Lock; "
HOLD += (
    "lock = Lock(Path(sys.argv[1])).acquire(); {more}; print('held', flush=True); time.sleep(60)"
)
FORKS = {
    "os.fork": "import os; os.fork() or time.sleep(60)",
    "multiprocessing": "import multiprocessing as m; m.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
    "a DataLoader worker": "from torch.utils.data import DataLoader; "
    "stays = iter(DataLoader([0, 1], num_workers=1, persistent_workers=True)); next(stays)",
    "a subprocess": "import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False)",
}


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process, in a group of its own, that holds the lock of tmp_path and then does `more`."""
    started: list[subprocess.Popen[str]] = []

    def start(more: str = "pass") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD.format(more=more), str(tmp_path)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_second_process_is_refused_with_host_and_process_of_the_first(
    hold: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = hold()
    with pytest.raises(InUse) as refused:
        Lock(tmp_path).acquire(patience=0)
    who = rf"process {first.pid} on {re.escape(platform.node())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
    fix = "Wait for it, end it, or give another run.dir"
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))} is in use by {who}. {fix}", str(refused.value)
    )
    assert json.loads((tmp_path / "run.lock").read_text())["pid"] == first.pid, (
        "a refused process must not write"
    )


@pytest.mark.parametrize("more", ["pass", *FORKS.values()], ids=["alone", *FORKS])
def test_a_kill_releases_it_at_once_though_children_live_on(
    hold: Callable[..., subprocess.Popen[str]], tmp_path: Path, more: str
) -> None:
    first = hold(more)
    first.kill()
    first.wait()
    if more != "pass":
        os.killpg(first.pid, 0)  # somebody of its group is still there
    began = time.monotonic()
    with Lock(tmp_path).acquire(patience=1):
        assert time.monotonic() - began < 0.5
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()


def test_a_child_that_ends_does_not_release_it(tmp_path: Path) -> None:
    with Lock(tmp_path).acquire():
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        assert child.exitcode == 0
        with pytest.raises(InUse):
            Lock(tmp_path).acquire(patience=0)


def test_a_child_may_take_it_after_its_parent(tmp_path: Path) -> None:
    """What a child forgets of its parent's lock is not what it holds itself."""
    with Lock(tmp_path).acquire():
        pass
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with Lock(tmp_path).acquire(patience=0):
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_it_waits_for_a_process_that_is_about_to_end(tmp_path: Path) -> None:
    first = Lock(tmp_path).acquire()
    threading.Timer(0.3, first.release).start()
    began = time.monotonic()
    Lock(tmp_path).acquire(patience=5).release()
    assert 0.25 < time.monotonic() - began < 2


def test_it_does_not_wait_longer_than_its_patience(tmp_path: Path) -> None:
    began = time.monotonic()
    with Lock(tmp_path).acquire(), pytest.raises(InUse):
        Lock(tmp_path).acquire(patience=0.3)
    assert 0.3 <= time.monotonic() - began < 1.5


def test_it_is_free_after_release_and_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(tmp_path):
        raise ZeroDivisionError
    lock = Lock(tmp_path).acquire(patience=0)
    lock.release()
    lock.release()
    Lock(tmp_path).acquire(patience=0).release()


def test_a_refused_process_leaves_no_descriptor_open(tmp_path: Path) -> None:
    with Lock(tmp_path).acquire():
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(InUse):
                Lock(tmp_path).acquire(patience=0)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "\x00"])
def test_a_lock_file_that_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.lock").write_text(content)
    assert holder(tmp_path / "run.lock") == "another process"


def test_a_longer_name_of_an_earlier_holder_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text("x" * 500)
    with Lock(tmp_path).acquire():
        assert set(json.loads((tmp_path / "run.lock").read_text())) == {"host", "pid", "since"}


def test_a_file_system_without_locks_is_warned_of_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", no_locks)
    Lock(tmp_path).acquire().release()
    assert "this file system has no locks (Function not implemented)" in caplog.text
