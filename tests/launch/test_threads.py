"""Processes on one machine share out its cores, and do not spin while they wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forge.launch import threads
from forge.launch.local import Ranks

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(("processes", "threads_each"), [(2, "4"), (3, "2"), (8, "1"), (9, "1")])
def test_several_share_the_cores(processes: int, threads_each: str) -> None:
    assert threads.settings(processes, {}, cores=8) == {**PASSIVE, "OMP_NUM_THREADS": threads_each}


def test_one_has_what_torch_chooses() -> None:
    assert threads.settings(1, {}, cores=8) == PASSIVE


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_stands(name: str) -> None:
    assert threads.settings(2, {name: "1"}, cores=2) == {"OMP_NUM_THREADS": "1"}
    assert threads.settings(2, {"OMP_NUM_THREADS": "7", name: "1"}) == {}


def test_ranks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, two runs at a time: a quarter of eight cores each."""
    for name in ("OMP_NUM_THREADS", *threads.WAITING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    (tmp_path / "tell.py").write_text(
        "import json, os, sys\n"
        "found = [os.environ['OMP_NUM_THREADS'], os.environ['OMP_WAIT_POLICY']]\n"
        "open(os.path.join(sys.argv[1], os.environ['RANK'] + '.json'), 'w').write(json.dumps(found))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ranks = Ranks(tmp_path, 2, module="tell", at_a_time=2)
    while ranks.poll() is None:
        pass
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [["2", "PASSIVE"]] * 2


def test_torch_takes_the_share() -> None:
    """By the variables alone, which OpenMP reads as torch is imported."""
    code = f"import os; os.environ.update({threads.settings(2, {}, cores=2)!r}); import torch; print(torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
