"""Folders of sockets of loader processes: one a rank, which goes whatever ends the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from forge.data.tokens.shards import IndexedStore
from forge.launch.local import processes
from forge.rundir.process_folders import LOCK, remove_left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets of loader processes")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket has a limit
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def loading(store: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loading_process", str(store)]
    path = {"PYTHONPATH": processes.search_path()}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=os.environ | path, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loaded\n"
    return process


def test_what_a_killed_rank_leaves_goes_and_no_more(
    temporary: Path, store: Callable[..., IndexedStore]
) -> None:
    root = store(np.arange(1000)).directory
    with loading(root) as killed, loading(root) as alive:
        folders = set(temporary.glob("pymp-*"))
        assert len(folders) == 2, "one a process that loads, not one a loader process"
        assert all(list(folder.glob("listener-*")) for folder in folders)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert set(temporary.glob("pymp-*")) == folders
        foreign = temporary / "pymp-foreign"  # of a process that is no forge's
        foreign.mkdir()
        linked = temporary / "pymp-linked"
        linked.symlink_to(root)
        (root / LOCK).touch()
        remove_left()
        left = set(temporary.glob("pymp-*")) - {foreign, linked}
        assert len(left) == 1
        assert left < folders
        assert (foreign.is_dir(), linked.exists()) == (True, True)
        alive.communicate()
        assert alive.returncode == 0
    assert set(temporary.glob("pymp-*")) == {foreign, linked}


def test_who_starts_ranks_removes_what_they_leave(
    temporary: Path, store: Callable[..., IndexedStore]
) -> None:
    root = store(np.arange(1000)).directory
    assert processes.start(root, module="loading_process") == 128 + signal.SIGKILL
    assert list(temporary.iterdir()) == []
