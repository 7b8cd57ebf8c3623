"""Processes on one machine share out its cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forge.launch.local import threads
from forge.launch.local.processes import Ranks


@pytest.mark.parametrize(("processes", "each"), [(2, "4"), (3, "2"), (8, "1"), (9, "1")])
def test_several_share_the_cores(
    processes: int, each: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    assert threads.shared(processes, {}) == {"OMP_NUM_THREADS": each}


def test_one_has_what_torch_chooses_and_what_the_user_has_set_stands() -> None:
    assert threads.shared(1, {}) == {}
    assert threads.shared(2, {"OMP_NUM_THREADS": "7"}) == {}
    assert threads.of_task({"SLURM_CPUS_ON_NODE": "8", "OMP_NUM_THREADS": "7"}) == {}


@pytest.mark.parametrize(
    ("environ", "each"),
    [
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, "8"),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_NTASKS_PER_NODE": "4"}, "16"),
        ({"SLURM_CPUS_ON_NODE": "1", "SLURM_NTASKS_PER_NODE": "4"}, "1"),
        ({"SLURM_CPUS_ON_NODE": "6"}, "6"),
        ({}, None),
    ],
)
def test_a_task_of_slurm_has_its_part_of_the_job(environ: dict[str, str], each: str | None) -> None:
    assert threads.of_task(environ).get("OMP_NUM_THREADS") == each


def test_ranks_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, two runs at a time: a quarter of eight cores each."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda quota: 8)
    (tmp_path / "tell.py").write_text(
        "import json, os, sys\n"
        "found = os.environ['OMP_NUM_THREADS']\n"
        "open(os.path.join(sys.argv[1], os.environ['RANK'] + '.json'), 'w').write(json.dumps(found))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ranks = Ranks(tmp_path, 2, module="tell", at_a_time=2)
    while ranks.poll() is None:
        pass
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == ["2", "2"]


def test_torch_takes_the_share() -> None:
    """By the variables alone, which OpenMP reads as torch is imported."""
    code = f"import os; os.environ.update({threads.of_task({'SLURM_CPUS_ON_NODE': '1'})!r}); import torch; print(torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
