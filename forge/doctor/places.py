"""Directories that a run writes to: room, locks, shared memory."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from forge.config.numbers import GIB, byte_size
from forge.doctor.finding import Finding, missing, ok, warn
from forge.doctor.limits import read

LOCK_FIX = (
    "run.root=DIR on another file system; a Lustre is mounted with -o flock, an NFS needs its lock "
    "service"
)
NOT_SHARED = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"}
"""Mount options of network file systems whose locks other hosts do not see."""


def place(name: str, path: Path, option: str, enough: int, *, needed: bool = True) -> Finding:
    """Whether a directory, or the one it would be made in, can be written and has `enough` bytes.

    option: what moves it elsewhere.
    """
    folder = nearest(path)
    found, fix = f"{path}{'' if folder == path else ' (not there yet)'}", f"make room, or {option}"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".forge_doctor_") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = free_bytes(folder)
        found = f"{found}: {byte_size(free)} free on {file_system(folder)}"
        if free >= enough:
            return ok(name, found)
        if free >= enough / 20:
            return warn(name, found, f"{byte_size(enough)} are a comfortable minimum; {fix}")
    except OSError as error:
        found = f"{found} cannot be written: {folder}: {error.strerror or error}"
        fix = f"choose another place: {option}"
    return missing(name, found, fix, needed=True) if needed else warn(name, found, fix)


def locks(runs: Path) -> Finding:
    """Whether a lock keeps a second process out; each run directory has one."""
    folder = nearest(runs)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as first, open(first.name, "rb") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _held(folder)
            why = "a second lock on a locked file is granted"
    except OSError as error:
        why = error.strerror or str(error)
    found = f"on {folder} ({file_system(folder)}): {why}"
    return missing("locks", found, LOCK_FIX, needed=True)


def _held(folder: Path) -> Finding:
    """What to say of a folder where a lock keeps the processes of this host out."""
    kind, options = mount(folder)
    if here := sorted(NOT_SHARED.intersection(options)):
        what = f"{folder} is {kind}, mounted with {here[0]}: other hosts do not see a lock"
        fix = "do not start one run directory on two hosts, or mount it with locks"
        return warn("locks", what, fix)
    return ok("locks", f"a lock on {folder} ({kind}) keeps others out")


def shared_memory(need: int, workers: int, gpus: int, free: int | None) -> Finding:
    """/dev/shm against the bytes that loader processes, and ranks on several GPUs, put there.

    free: None where there is no /dev/shm.
    """
    users = [f"{workers} loader processes"] * (workers > 0) + [f"{gpus} GPUs"] * (gpus > 1)
    need = max(need, GIB) if gpus > 1 else need
    use = f"{byte_size(need)} for {' and '.join(users)}"
    fix = "docker run --shm-size=8g" + (", or data.num_workers=0" if workers else "")
    found = "none" if free is None else f"{byte_size(free)} free"
    if (free or 0) < need:
        return warn("/dev/shm", f"{found}, which is less than {use}", fix)
    return ok("/dev/shm", found + (f" ({use})" if need else ""))


def nearest(path: Path) -> Path:
    """The path, or what is there of those above it."""
    return next(one for one in (path, *path.parents) if os.path.lexists(one))


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def file_system(folder: Path) -> str:
    return mount(folder)[0]


def mount(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> tuple[str, list[str]]:
    """Type and mount options of the file system that a folder is on."""
    best, real = ("", "a file system of unknown type", ""), folder.resolve()
    for _, mounted, kind, options, *_ in map(str.split, read(mounts).splitlines()):
        if real.is_relative_to(mounted.replace("\\040", " ")) and len(mounted) >= len(best[0]):
            best = mounted, kind, options
    return best[1], best[2].split(",")
