"""Places that are written to: files in the way, locks, file systems; nothing stays behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forge.doctor import places
from forge.doctor.finding import MISSING, OK
from forge.doctor.places import Place, Trial


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
    why = f"cannot be written: {tmp_path}/file is a file"
    assert found.found == f"{tmp_path}/file/runs (not there yet) {why}"
    assert places.locks(trial).fix == "see run.root above"
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    assert places.attempt(tmp_path / "runs").error == f"{tmp_path}/runs is a broken link"
    stat = os.statvfs(tmp_path)
    assert 0 < places.free_bytes(tmp_path) <= stat.f_blocks * stat.f_frsize


def test_a_place_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(places.tempfile, "NamedTemporaryFile", refuse)
    found, _ = examined(tmp_path)
    said = f"{tmp_path} cannot be written: Read-only file system"
    assert (found.status, found.found) == (MISSING, said)


def test_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They work here; they may be refused, or be without effect."""
    found = places.locks(places.attempt(tmp_path))
    assert (found.status, found.found.partition(" (")[0]) == (OK, f"a lock on {tmp_path}")

    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(places.fcntl, "flock", flock)
    refused = "locks do not work (ENOLCK No locks available)"
    assert places.attempt(tmp_path).locks == refused
    monkeypatch.setattr(places.fcntl, "flock", lambda *_: None)
    assert places.attempt(tmp_path).locks == "a second lock on a locked file is granted"
    assert list(tmp_path.iterdir()) == []


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
srv:/x /data nfs4 rw,local_lock=all,addr=1 0 0
srv:/y /data/with\\040space lustre rw,flock 0 0
"""


def test_file_systems(tmp_path: Path):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    nfs = ("nfs4", ("rw", "local_lock=all", "addr=1"))
    assert places.file_system(Path("/data/runs"), mounts) == nfs
    assert places.file_system(Path("/data/with space/x"), mounts)[0] == "lustre"
    assert places.file_system(Path("/database"), mounts)[0] == "ext4"
    unknown = "a file system of unknown type"
    assert places.file_system(Path("/"), tmp_path / "none")[0] == unknown
