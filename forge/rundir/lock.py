"""One process at a time on a run directory, or on a sweep's."""

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

from forge.config.regular import open_regular
from forge.rundir.files import read_object
from forge.rundir.untrusted import check_links

log = logging.getLogger(__name__)

LOCK = "run.lock"
PATIENCE = 3.0  # seconds for a killed process and its children to let go
# Lustre without flock, and some network disks.
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}


class DirectoryInUse(ValueError):
    """Another process works in the directory: the process, its host, and since when."""


class Lock:
    """A lock on `run.lock`, a file with the name of its holder: host, process, since when.

    The kernel releases the lock when the process ends; children do not inherit the lock. Its holder
    writes in the directory; a directory with links out of the directory is therefore refused.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str = LOCK,
        *,
        advice: str = "Wait for it, end it, or give another run.dir",
        apart: Collection[str] = (),
    ) -> None:
        """advice: for a process that meets a held lock. apart: folders of directories with separate
        locks.
        """
        from filelock import FileLock  # takes 50 ms to import

        self.path, self.advice, self.apart = run_dir / name, advice, apart
        self._lock = FileLock(self.path, thread_local=False, fallback_to_soft=False)
        self._held = False

    def acquire(self, *, patience: float = PATIENCE) -> Lock:
        """Take the lock. Raises DirectoryInUse after `patience` seconds, ConfigError for links out
        of the directory.
        """
        from filelock import Timeout

        check_links(self.path.parent, self.apart)
        try:
            self._lock.acquire(timeout=patience)
        except Timeout:
            text = f"{self.path.parent} is in use by {holder(self.path)}. {self.advice}"
            raise DirectoryInUse(text) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            text = "this file system has no locks (%s): start no two processes in one run directory"
            log.warning(text, error.strerror)
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        who = {"host": platform.node(), "pid": os.getpid(), "since": now}
        self.path.write_text(json.dumps(who) + "\n", encoding="utf-8")
        self._held = True
        return self

    def release(self) -> None:
        self._held = False
        self._lock.release()

    def __enter__(self) -> Lock:
        return self if self._held else self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> str:
    try:
        return "process {pid} on {host} since {since}".format(**held_by(path))
    except KeyError:
        return "another process"


def held_by(path: Path) -> dict[str, Any]:
    """host, pid and since of the last holder, from the lock file; empty when the file is
    unreadable.
    """
    try:
        return read_object(path)
    except (OSError, ValueError):
        return {}


def in_use(run_dir: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of a directory; False where the file system has no locks."""
    try:
        with open_regular(run_dir / name) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
