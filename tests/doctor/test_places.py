"""Places that are written to: room, files in the way, locks, clocks, shared memory; nothing stays
behind.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forge.config.numbers import GIB, MIB
from forge.doctor import places
from forge.doctor.finding import MISSING, OK, WARN
from forge.doctor.places import Place, Trial

NEEDED = Place(name="run.root", path=Path("/p"), option="run.root=DIR", enough=10 * GIB)
OTHER = Place(name="home", path=Path("/p"), option="HOME=DIR", enough=GIB, needed=False)
WROTE = Trial(folder=Path("/p"))


def examined(path: Path):
    return places.examine(Place(name="run.root", path=path, option="run.root=DIR", enough=1))


def test_places(tmp_path: Path):
    """There, not there yet, behind a file, and a link to nowhere."""
    found, trial = examined(tmp_path)
    assert (found.status, trial) == (OK, Trial(folder=tmp_path, skew=trial.skew))
    assert found.found.startswith(f"{tmp_path}: ")
    found, trial = examined(tmp_path / "a" / "b")
    assert (found.status, trial.folder) == (OK, tmp_path)
    assert found.found.startswith(f"{tmp_path}/a/b (not there yet): ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    found, trial = examined(tmp_path / "file" / "runs")
    assert (found.status, found.needed) == (MISSING, True)
    assert found.fix == "choose another place: run.root=DIR"
    why = f"cannot be written: {tmp_path}/file is a file"
    assert found.found == f"{tmp_path}/file/runs (not there yet) {why}"
    assert places.locks(trial).fix == "see run.root above"
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    assert places.attempt(tmp_path / "runs").error == f"{tmp_path}/runs is a broken link"


def test_a_place_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(places.tempfile, "NamedTemporaryFile", refuse)
    found, _ = examined(tmp_path)
    said = f"{tmp_path} cannot be written: Read-only file system"
    assert (found.status, found.found) == (MISSING, said)


def test_room(tmp_path: Path):
    assert places.judge(NEEDED, WROTE, 10 * GIB).status == OK
    few, full = places.judge(NEEDED, WROTE, 9 * GIB), places.judge(NEEDED, WROTE, GIB // 4)
    least = "10.0 GiB are a comfortable minimum; make room, or run.root=DIR"
    assert (few.status, few.fix) == (WARN, least)
    assert few.found.startswith("/p: 9.0 GiB free on ")
    assert (full.status, full.needed, full.fix) == (MISSING, True, "make room, or run.root=DIR")
    assert places.judge(OTHER, WROTE, 0).status == WARN
    stat = os.statvfs(tmp_path)
    assert 0 < places.free_bytes(tmp_path) <= stat.f_blocks * stat.f_frsize


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They work here; they may be refused, or be without effect."""
    found = places.locks(places.attempt(tmp_path))
    assert (found.status, found.found.partition(" (")[0]) == (OK, f"a lock on {tmp_path}")

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(places.fcntl, "flock", flock)
    found = places.locks(places.attempt(tmp_path))
    assert (found.status, found.needed, found.fix) == (MISSING, True, places.LOCK_FIX)
    assert found.found.endswith(": locks do not work (ENOLCK No locks available)")
    monkeypatch.setattr(places.fcntl, "flock", lambda *_: None)
    found = places.locks(places.attempt(tmp_path))
    assert found.found.endswith(": a second lock on a locked file is granted")
    assert list(tmp_path.iterdir()) == []


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
srv:/x /data nfs4 rw,local_lock=all,addr=1 0 0
srv:/y /data/with\\040space lustre rw,flock 0 0
"""


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    nfs = ("nfs4", ("rw", "local_lock=all", "addr=1"))
    assert places.file_system(Path("/data/runs"), mounts) == nfs
    assert places.file_system(Path("/data/with space/x"), mounts)[0] == "lustre"
    assert places.file_system(Path("/database"), mounts)[0] == "ext4"
    unknown = "a file system of unknown type"
    assert places.file_system(Path("/"), tmp_path / "none")[0] == unknown
    monkeypatch.setattr(places, "file_system", lambda _: nfs)
    found = places.locks(WROTE)
    assert found.fix == "do not start one run directory on two hosts, or mount it with locks"
    said = "/p is nfs4, mounted with local_lock=all: a lock is not seen by other hosts"
    assert (found.status, found.found) == (WARN, said)
    monkeypatch.setattr(places, "file_system", lambda _: ("nfs4", ("rw", "local_lock=none")))
    assert places.locks(WROTE).status == OK


def test_clock():
    assert places.clock(WROTE).status == OK
    for skew, side in ((90.0, "ahead of"), (-90.0, "behind")):
        found = places.clock(Trial(folder=Path("/p"), skew=skew))
        assert found.found.endswith(f"; the file system of the runs is 90 s {side} it")
        assert found.fix == "let both follow a time server (timedatectl set-ntp true)"


@pytest.mark.parametrize(
    ("need", "workers", "gpus", "free", "said", "fix"),
    [
        (4 * MIB, 4, 0, 64 * MIB, "64.0 MiB free (4.0 MiB for 4 loader processes)", ""),
        (
            100 * MIB,
            4,
            0,
            64 * MIB,
            "64.0 MiB free, which is less than 100.0 MiB for 4 loader processes",
            "docker run --shm-size=8g, or data.num_workers=0",
        ),
        (
            0,
            0,
            8,
            64 * MIB,
            "64.0 MiB free, which is less than 1.0 GiB for 8 GPUs",
            "docker run --shm-size=8g",
        ),
        (
            MIB,
            2,
            0,
            None,
            "there is none; it holds 1.0 MiB for 2 loader processes",
            "mount one: docker run --shm-size=8g, or data.num_workers=0",
        ),
        (0, 0, 0, None, "none", ""),
    ],
)
def test_shared_memory(need, workers, gpus, free, said, fix):
    found = places.shared_memory(need, workers, gpus, free)
    assert (found.status, found.found, found.fix) == (WARN if fix else OK, said, fix)
