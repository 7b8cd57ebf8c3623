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


def tree(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_a_place_that_is_well_and_nothing_is_left_in_it(tmp_path: Path):
    place = Place(name="run.root", path=tmp_path, option="run.root=DIR", enough=1)
    found, trial = places.examine(place)
    assert (found.status, trial.error, trial.locks, trial.folder) == (OK, "", "", tmp_path)
    assert found.found.startswith(f"{tmp_path}: ")
    assert tree(tmp_path) == []


def test_a_place_that_is_not_there_yet_is_tried_above(tmp_path: Path):
    found, trial = places.examine(
        Place(name="run.root", path=tmp_path / "a" / "b", option="run.root=DIR", enough=1)
    )
    assert (found.status, trial.folder) == (OK, tmp_path)
    assert found.found.startswith(f"{tmp_path}/a/b (not there yet): ")
    assert tree(tmp_path) == []


def test_a_file_in_the_way(tmp_path: Path):
    (tmp_path / "file").touch()
    found, trial = places.examine(
        Place(name="run.root", path=tmp_path / "file" / "runs", option="run.root=DIR", enough=1)
    )
    assert (found.status, found.needed, found.fix) == (
        MISSING,
        True,
        "choose another place: run.root=DIR",
    )
    assert (
        found.found
        == f"{tmp_path}/file/runs (not there yet) cannot be written: {tmp_path}/file is a file"
    )
    assert places.locks(trial).fix == "see run.root above"


def test_a_link_to_nowhere(tmp_path: Path):
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    assert places.attempt(tmp_path / "runs").error == f"{tmp_path}/runs is a broken link"


def test_a_place_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(places.tempfile, "NamedTemporaryFile", refuse)
    found, _ = places.examine(
        Place(name="home", path=tmp_path, option="HOME=DIR", enough=1, needed=False)
    )
    assert (found.status, found.found) == (
        WARN,
        f"{tmp_path} cannot be written: Read-only file system",
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_mode_of_a_directory_counts(tmp_path: Path):
    tmp_path.chmod(0o500)
    assert places.attempt(tmp_path).error == "Permission denied"


def test_room():
    assert places.judge(NEEDED, WROTE, 10 * GIB, None).status == OK
    few = places.judge(NEEDED, WROTE, 9 * GIB, 10**6)
    assert (few.status, few.fix) == (
        WARN,
        "10.0 GiB are a comfortable minimum; make room, or run.root=DIR",
    )
    assert few.found.startswith("/p: 9.0 GiB free on ")
    full = places.judge(NEEDED, WROTE, GIB // 4, None)
    assert (full.status, full.needed, full.fix) == (MISSING, True, "make room, or run.root=DIR")
    assert places.judge(OTHER, WROTE, 0, None).status == WARN
    files = places.judge(NEEDED, WROTE, 100 * GIB, 3)
    assert (files.status, files.fix) == (MISSING, "remove files, or run.root=DIR")
    assert files.found.endswith(", but only 3 more files can be made")


def test_room_of_a_real_folder(tmp_path: Path):
    free, files = places.room(tmp_path)
    stat = os.statvfs(tmp_path)
    assert 0 < free <= stat.f_blocks * stat.f_frsize
    assert files is None or 0 < files <= stat.f_files


def test_locks_work_here(tmp_path: Path):
    found = places.locks(places.attempt(tmp_path))
    assert (found.status, found.found.partition(" (")[0]) == (OK, f"a lock on {tmp_path}")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_locks_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(places.fcntl, "flock", flock)
    found = places.locks(places.attempt(tmp_path))
    assert (found.status, found.needed) == (MISSING, True)
    assert found.found.endswith(
        f": locks do not work ({errno.errorcode[number]} {os.strerror(number)})"
    )
    assert (
        found.fix
        == "run.root=DIR on another file system; a Lustre is mounted with -o flock, an NFS needs its lock service"
    )
    assert tree(tmp_path) == []


def test_locks_without_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(places.fcntl, "flock", lambda *_: None)
    assert places.locks(places.attempt(tmp_path)).found.endswith(
        ": a second lock on a locked file is granted"
    )


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
srv:/x /data nfs4 rw,local_lock=all,addr=1 0 0
srv:/y /data/with\\040space lustre rw,flock 0 0
"""


def test_file_systems(tmp_path: Path):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert places.file_system(Path("/data/runs"), mounts) == (
        "nfs4",
        ("rw", "local_lock=all", "addr=1"),
    )
    assert places.file_system(Path("/data/with space/x"), mounts)[0] == "lustre"
    assert places.file_system(Path("/database"), mounts)[0] == "ext4"
    assert places.file_system(Path("/"), tmp_path / "none") == ("a file system of unknown type", ())


def test_locks_that_stay_on_one_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(places, "file_system", lambda _: ("nfs4", ("rw", "local_lock=all")))
    found = places.locks(WROTE)
    assert (found.status, found.fix) == (
        WARN,
        "do not start one run directory on two hosts, or mount it with locks",
    )
    assert (
        found.found == "/p is nfs4, mounted with local_lock=all: a lock is not seen by other hosts"
    )
    monkeypatch.setattr(places, "file_system", lambda _: ("nfs4", ("rw", "local_lock=none")))
    assert places.locks(WROTE).status == OK


def test_clock():
    assert places.clock(WROTE, 1_800_000_000).found == "2027-01-15 08:00:00 UTC"
    assert places.clock(WROTE).status == OK
    past = places.clock(WROTE, 0.0)
    assert (past.status, past.found) == (WARN, "1970-01-01 00:00:00 UTC, which is long past")
    assert past.fix == "set it (timedatectl set-ntp true): names of runs and W&B need it"
    ahead = places.clock(Trial(folder=Path("/p"), skew=90.0), 1_800_000_000)
    assert ahead.found == "2027-01-15 08:00:00 UTC; the file system of the runs is 90 s ahead of it"
    assert ahead.fix == "let both follow a time server (timedatectl set-ntp true)"
    assert (
        " is 90 s behind it"
        in places.clock(Trial(folder=Path("/p"), skew=-90.0), 1_800_000_000).found
    )


def test_shared_memory():
    assert (
        places.shared_memory(4 * MIB, 4, 0, 64 * MIB).found
        == "64.0 MiB free (4.0 MiB for 4 loader processes)"
    )
    small = places.shared_memory(100 * MIB, 4, 0, 64 * MIB)
    assert (small.status, small.found) == (
        WARN,
        "64.0 MiB free, which is less than 100.0 MiB for 4 loader processes",
    )
    assert small.fix == "docker run --shm-size=8g, or data.num_workers=0"
    gpus = places.shared_memory(0, 0, 8, 64 * MIB)
    assert (gpus.found, gpus.fix) == (
        "64.0 MiB free, which is less than 1.0 GiB for 8 GPUs",
        "docker run --shm-size=8g",
    )
    none = places.shared_memory(1, 2, 0, None)
    assert (none.status, none.fix) == (
        WARN,
        "mount one: docker run --shm-size=8g, or data.num_workers=0",
    )
    assert places.shared_memory(0, 0, 0, None).status == OK
