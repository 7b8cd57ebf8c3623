"""The folder of sockets shared by a process and its processes for loading and tokenising.

Python gives every process that hands on a tensor a folder `pymp-...` in the temporary directory.
The folder goes when the process ends by itself; a killed process, like loader processes killed with
their rank, leaves the folder behind.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import multiprocessing.util
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

LOCK = "forge.lock"

_locks: dict[str, int] = {}  # the open lock of the folder of this process


def share_folder() -> None:
    """Share this process's folder with all processes started from now on.

    A single folder then goes with this process, or, after a kill, with `remove_left`.
    """
    remove_left()
    folder = multiprocessing.util.get_temp_dir()  # started processes inherit the folder
    if multiprocessing.parent_process() is not None or folder in _locks:
        return
    new = Path(folder, f"{LOCK}.new")
    with suppress(OSError):  # a file system without locks
        # A lock by lockf is of this process alone: forked processes do not hold the lock.
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(Path(folder, LOCK))
        _locks[folder] = lock


def remove_left() -> None:
    """Remove the folders made by `share_folder` for dead processes of this user."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith("pymp-") and entry.path not in _locks:
                with suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(os.path.join(entry.path, LOCK), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
