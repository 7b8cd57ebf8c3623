"""Directories that a run writes to: can be written, room that is left, locks, and the clock of the
file system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from forge.config.numbers import GIB, byte_size
from forge.doctor.finding import Finding, missing, ok, warn

NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "beegfs",
    "gpfs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "9p",
    "afs",
)
LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl")
EARLIEST = 1_735_689_600  # 2025-01-01, before the first version of forge
SKEW = 60.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory: its name in the report, where it is, what moves it elsewhere, and the room it
    should have (bytes).
    """

    name: str
    path: Path
    option: str
    enough: int
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of writing, locking and removing one small file below a place."""

    folder: Path
    error: str = ""
    locks: str = ""
    skew: float = 0.0


def examine(place: Place) -> tuple[Finding, Trial]:
    """Whether a place can be written and has room, and the trial that showed it."""
    trial = attempt(place.path)
    return judge(place, trial, *([None, None] if trial.error else room(trial.folder))), trial


def judge(place: Place, trial: Trial, free: int | None, files: int | None) -> Finding:
    """What to say of a place; `free` is in bytes, `files` the files that may still be made there
    (None: no limit is known).
    """
    where = f"{place.path}" + ("" if trial.folder == place.path else " (not there yet)")
    if trial.error:
        return _bad(
            place,
            f"{where} cannot be written: {trial.error}",
            f"choose another place: {place.option}",
        )
    found = f"{where}: {byte_size(free or 0)} free on {file_system(trial.folder)[0]}"
    if files is not None and files < 1000:
        return _bad(
            place,
            f"{found}, but only {files} more files can be made",
            f"remove files, or {place.option}",
        )
    if free is not None and free < place.enough / 20:
        return _bad(place, found, f"make room, or {place.option}")
    if free is not None and free < place.enough:
        return warn(
            place.name,
            found,
            f"{byte_size(place.enough)} are a comfortable minimum; make room, or {place.option}",
        )
    return ok(place.name, found)


def attempt(path: Path) -> Trial:
    """Write, lock and remove a small file in a directory, or where it would be made."""
    folder = path
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return Trial(
            folder=folder, error=f"{folder} is {'a file' if folder.exists() else 'a broken link'}"
        )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".forge_doctor_") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            skew = os.fstat(file.fileno()).st_mtime - time.time()
            return Trial(folder=folder, locks=_lock(file.name), skew=skew)
    except OSError as error:
        return Trial(folder=folder, error=error.strerror or str(error))


def locks(trial: Trial) -> Finding:
    """Whether a lock keeps a second process out; each run directory has one."""
    if trial.error:
        return missing("locks", "no file can be made to try one", "see run.root above", needed=True)
    kind, options = file_system(trial.folder)
    if trial.locks:
        fix = "run.root=DIR on another file system; a Lustre is mounted with -o flock, an NFS needs its lock service"
        return missing("locks", f"on {trial.folder} ({kind}): {trial.locks}", fix, needed=True)
    local = next((option for option in options if option in LOCAL_LOCKS), None)
    if kind in NETWORK and local:
        what = f"{trial.folder} is {kind}, mounted with {local}: a lock is not seen by other hosts"
        return warn(
            "locks", what, "do not start one run directory on two hosts, or mount it with locks"
        )
    return ok("locks", f"a lock on {trial.folder} ({kind}) keeps others out")


def clock(trial: Trial, now: float | None = None) -> Finding:
    """Whether the time can be true, and the same here and on the file system of the runs."""
    now = time.time() if now is None else now
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST:
        return warn(
            "clock",
            f"{found}, which is long past",
            "set it (timedatectl set-ntp true): names of runs and W&B need it",
        )
    if abs(trial.skew) > SKEW:
        side = "ahead of" if trial.skew > 0 else "behind"
        what = f"{found}; the file system of the runs is {abs(trial.skew):.0f} s {side} it"
        return warn("clock", what, "let both follow a time server (timedatectl set-ntp true)")
    return ok("clock", found)


def shared_memory(need: int, workers: int, gpus: int, free: int | None) -> Finding:
    """/dev/shm against what loader processes put there, and ranks on several GPUs (bytes); `free`
    is None where there is none.
    """
    if gpus > 1:
        need = max(need, GIB)
    use = f"{byte_size(need)} for {' and '.join([f'{workers} loader processes'] * (workers > 0) + [f'{gpus} GPUs'] * (gpus > 1))}"
    others = "docker run --shm-size=8g" + (", or data.num_workers=0" if workers else "")
    if free is None:
        return (
            warn("/dev/shm", f"there is none; it holds {use}", f"mount one: {others}")
            if need
            else ok("/dev/shm", "none")
        )
    if free < need:
        return warn("/dev/shm", f"{byte_size(free)} free, which is less than {use}", others)
    return ok("/dev/shm", f"{byte_size(free)} free" + (f" ({use})" if need else ""))


def room(folder: Path) -> tuple[int, int | None]:
    """Bytes that are free to this user, and files that may still be made (None where the file
    system has no such limit).
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def file_system(
    folder: Path, mounts: Path = Path("/proc/self/mounts")
) -> tuple[str, tuple[str, ...]]:
    """Type and mount options of what a folder is on."""
    try:
        rows = [
            line.split()
            for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
    except OSError:
        return "a file system of unknown type", ()
    real = folder.resolve()
    holding = [
        row for row in rows if len(row) > 3 and real.is_relative_to(row[1].replace("\\040", " "))
    ]
    best = max(
        holding, key=lambda row: len(row[1]), default=["", "", "a file system of unknown type", ""]
    )
    return best[2], tuple(best[3].split(","))


def _lock(name: str) -> str:
    """Empty when a lock works, else what is wrong with it."""
    with open(name, "rb") as first, open(name, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return (
                f"locks do not work ({errno.errorcode.get(error.errno or 0, '')} {error.strerror})"
            )
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ""
        return "a second lock on a locked file is granted"


def _bad(place: Place, found: str, fix: str) -> Finding:
    return (
        missing(place.name, found, fix, needed=True)
        if place.needed
        else warn(place.name, found, fix)
    )
