"""Directories written by a run: room, locks, shared memory."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from forge.config.numbers import GIB, byte_size
from forge.doctor.finding import Finding, missing, ok, warn
from forge.doctor.limits import read_value

LOCK_FIX = (
    "run.root=DIR on another file system; a Lustre is mounted with -o flock, an NFS needs its lock "
    "service"
)
NOT_SHARED = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"}
"""Mount options of network file systems with locks invisible to other hosts."""


def check_place(name: str, path: Path, option: str, enough: int, *, needed: bool = True) -> Finding:
    """Whether a directory, or its nearest existing parent, is writable and has `enough` bytes.

    option: moves the directory elsewhere.
    """
    folder = nearest(path)
    summary, hint = (
        f"{path}{'' if folder == path else ' (not there yet)'}",
        f"make room, or {option}",
    )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".forge_doctor_") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        free = free_bytes(folder)
        summary = f"{summary}: {byte_size(free)} free on {file_system(folder)}"
        if free >= enough:
            return ok(name, summary)
        if free >= enough / 20:
            return warn(name, summary, f"{byte_size(enough)} are a comfortable minimum; {hint}")
    except OSError as error:
        summary = f"{summary} cannot be written: {folder}: {error.strerror or error}"
        hint = f"choose another place: {option}"
    return missing(name, summary, hint, needed=True) if needed else warn(name, summary, hint)


def locks(runs: Path) -> Finding:
    """Whether a lock keeps a second process out of a run directory."""
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
    summary = f"on {folder} ({file_system(folder)}): {why}"
    return missing("locks", summary, LOCK_FIX, needed=True)


def _held(folder: Path) -> Finding:
    """The finding for a folder with working locks between the processes of this host."""
    kind, options = mount(folder)
    if local_options := sorted(NOT_SHARED.intersection(options)):
        message = (
            f"{folder} is {kind}, mounted with {local_options[0]}: other hosts do not see a lock"
        )
        hint = "do not start one run directory on two hosts, or mount it with locks"
        return warn("locks", message, hint)
    return ok("locks", f"a lock on {folder} ({kind}) keeps others out")


def shared_memory(need: int, workers: int, gpus: int, free: int | None) -> Finding:
    """Compare /dev/shm with the bytes of loader processes, and of ranks on several GPUs.

    free: None without a /dev/shm.
    """
    users = [f"{workers} loader processes"] * (workers > 0) + [f"{gpus} GPUs"] * (gpus > 1)
    need = max(need, GIB) if gpus > 1 else need
    use = f"{byte_size(need)} for {' and '.join(users)}"
    hint = "docker run --shm-size=8g" + (", or data.num_workers=0" if workers else "")
    free_text = "none" if free is None else f"{byte_size(free)} free"
    if (free or 0) < need:
        return warn("/dev/shm", f"{free_text}, which is less than {use}", hint)
    return ok("/dev/shm", free_text + (f" ({use})" if need else ""))


def nearest(path: Path) -> Path:
    """The path, or the nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def file_system(folder: Path) -> str:
    return mount(folder)[0]


def mount(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> tuple[str, list[str]]:
    """Type and mount options of a folder's file system."""
    best, real = ("", "a file system of unknown type", ""), folder.resolve()
    for _, mounted, kind, options, *_ in map(str.split, read_value(mounts).splitlines()):
        if real.is_relative_to(mounted.replace("\\040", " ")) and len(mounted) >= len(best[0]):
            best = mounted, kind, options
    return best[1], best[2].split(",")
