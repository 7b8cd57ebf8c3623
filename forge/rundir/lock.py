"""One process at a time on a run directory, or on that of a sweep."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from forge.rundir import links
from forge.rundir.stored import read_json

log = logging.getLogger(__name__)

LOCK = "run.lock"
PATIENCE = 3.0  # seconds that a killed process, and the children it had, may take to let go
NO_LOCKS = {
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOLCK,
}  # as Lustre without its flock option, and some network file systems
_held: set[int] = set()


class Held(ValueError):
    """Another process works in the run directory: which one, where, and since when."""


class Lock:
    """An flock on `run.lock`, which says who holds it: host, process, since when. The kernel
    releases it when its process ends.

    Children do not inherit it, or a loader process that outlives its rank by a moment would keep
    the directory shut. Who holds it writes in the directory, so none is held that has links out of
    it.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str = LOCK,
        *,
        advice: str = "Wait for it, end it, or give another run.dir",
        apart: Collection[str] = (),
    ) -> None:
        """name: of the file. advice: what is said to who comes second. apart: folders in it, of
        directories with locks of their own.
        """
        self.path, self.advice, self.apart = run_dir / name, advice, apart
        self._descriptor: int | None = None

    def acquire(self, *, patience: float = PATIENCE) -> Lock:
        """Take the lock, waiting at most `patience` seconds. Raises Held, and ConfigError where
        links lead out of the directory.
        """
        links.check(self.path.parent, self.apart)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + patience
        while not _lock(descriptor):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise Held(f"{self.path.parent} is in use by {holder(self.path)}. {self.advice}")
            time.sleep(0.05)
        who = {
            "host": platform.node(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(who) + "\n").encode(), 0)
        self._descriptor = descriptor
        _held.add(descriptor)
        return self

    def release(self) -> None:
        """Let go; without effect when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Lock:
        return self if self._descriptor is not None else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> str:
    """Who a lock file says holds it."""
    try:
        who = held_by(path)
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (KeyError, TypeError):
        return "another process"


def held_by(path: Path) -> dict[str, Any]:
    """host, pid and since, as a lock file says them, whether or not they still are; empty when it
    says nothing.
    """
    try:
        who = read_json(path)
    except (OSError, ValueError):
        return {}
    return who if isinstance(who, dict) else {}


def in_use(run_dir: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of a directory; where the file system has no locks, nobody
    does.
    """
    try:
        descriptor = os.open(run_dir / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning(
            "this file system has no locks (%s), so see to it that no two processes work in one run directory",
            error.strerror,
        )
    return True


def _leave_to_the_parent() -> None:
    for descriptor in list(_held):
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
