"""Directories that a run writes to: room, locks, the clock of the file system, shared memory."""

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

NETWORK = "nfs nfs4 cifs smb3 lustre beegfs gpfs ceph glusterfs fuse.sshfs 9p afs"
LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl")
LOCK_FIX = (
    "run.root=DIR on another file system; a Lustre is mounted with -o flock, an NFS needs its lock "
    "service"
)
SKEW = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory: its name in the report, the option that moves it, and the bytes that it should
    have.
    """

    name: str
    path: Path
    option: str
    enough: int
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of writing and locking one small file in a directory: errors, and the seconds by
    which the clock of the file system is ahead.
    """

    folder: Path
    error: str = ""
    locks: str = ""
    skew: float = 0.0


def examine(place: Place) -> tuple[Finding, Trial]:
    """Whether a place can be written and has room, and the trial that showed it."""
    trial = attempt(place.path)
    return judge(place, trial, 0 if trial.error else free_bytes(trial.folder)), trial


def judge(place: Place, trial: Trial, free: int) -> Finding:
    """What to say of a place with so many bytes free."""
    found, fix = str(place.path), f"make room, or {place.option}"
    found += "" if trial.folder == place.path else " (not there yet)"
    if trial.error:
        found = f"{found} cannot be written: {trial.error}"
        fix = f"choose another place: {place.option}"
    else:
        found = f"{found}: {byte_size(free)} free on {file_system(trial.folder)[0]}"
        if free >= place.enough:
            return ok(place.name, found)
        if free >= place.enough / 20:
            least = f"{byte_size(place.enough)} are a comfortable minimum"
            return warn(place.name, found, f"{least}; {fix}")
    if place.needed:
        return missing(place.name, found, fix, needed=True)
    return warn(place.name, found, fix)


def attempt(path: Path) -> Trial:
    """Write, lock and remove a small file in a directory, or where it would be made."""
    folder = path
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        kind = "a file" if folder.exists() else "a broken link"
        return Trial(folder=folder, error=f"{folder} is {kind}")
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
    folder, (kind, options) = trial.folder, file_system(trial.folder)
    if trial.locks:
        return missing("locks", f"on {folder} ({kind}): {trial.locks}", LOCK_FIX, needed=True)
    local = next((option for option in options if option in LOCAL_LOCKS), None)
    if kind in NETWORK.split() and local:
        what = f"{folder} is {kind}, mounted with {local}: a lock is not seen by other hosts"
        fix = "do not start one run directory on two hosts, or mount it with locks"
        return warn("locks", what, fix)
    return ok("locks", f"a lock on {folder} ({kind}) keeps others out")


def clock(trial: Trial) -> Finding:
    """Whether the time is the same here and on the file system of the runs."""
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if abs(trial.skew) > SKEW:
        side = "ahead of" if trial.skew > 0 else "behind"
        what = f"{found}; the file system of the runs is {abs(trial.skew):.0f} s {side} it"
        return warn("clock", what, "let both follow a time server (timedatectl set-ntp true)")
    return ok("clock", found)


def shared_memory(need: int, workers: int, gpus: int, free: int | None) -> Finding:
    """/dev/shm against the bytes that loader processes, and ranks on several GPUs, put there. free:
    None where there is no /dev/shm.
    """
    users = [f"{workers} loader processes"] * (workers > 0) + [f"{gpus} GPUs"] * (gpus > 1)
    need = max(need, GIB) if gpus > 1 else need
    use = f"{byte_size(need)} for {' and '.join(users)}"
    fix = "docker run --shm-size=8g" + (", or data.num_workers=0" if workers else "")
    if free is None:
        none = f"there is none; it holds {use}"
        return warn("/dev/shm", none, f"mount one: {fix}") if need else ok("/dev/shm", "none")
    if free < need:
        return warn("/dev/shm", f"{byte_size(free)} free, which is less than {use}", fix)
    return ok("/dev/shm", f"{byte_size(free)} free" + (f" ({use})" if need else ""))


def free_bytes(folder: Path) -> int:
    """Bytes that are free to this user."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def file_system(
    folder: Path, mounts: Path = Path("/proc/self/mounts")
) -> tuple[str, tuple[str, ...]]:
    """Type and mount options of what a folder is on."""
    best, real = ["", "", "a file system of unknown type", ""], folder.resolve()
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for row in map(str.split, lines):
        mounted = row[1].replace("\\040", " ")
        if real.is_relative_to(mounted) and len(row[1]) >= len(best[1]):
            best = row
    return best[2], tuple(best[3].split(","))


def _lock(name: str) -> str:
    """Empty when a lock works, else what is wrong with it."""
    with open(name, "rb") as first, open(name, "rb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "")
            return f"locks do not work ({code} {error.strerror})"
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return ""
        return "a second lock on a locked file is granted"
