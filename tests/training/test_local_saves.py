"""Saves to the disks of nodes while training continues: the same bits, and none torn by a kill."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers.going_on_helpers import take
from helpers.ranks import forking
from layouts import LAYOUTS, SMALL, Train, rank_of, trains
from run_helpers import assert_bit_equal, logged, step_of, stored

from forge.launch.local.processes import free_port
from forge.rundir import outcome
from forge.training.checkpoints.local_tier import LocalTier

LOCAL = (
    "checkpoint.local_interval=4 checkpoint.local_ranks=1 checkpoint.local_dir={}/node_%n "
    "checkpoint.async_mode=async checkpoint.interval=6"
)


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


def started_at(run: Path) -> list[int]:
    return [row["step"] for row in outcome.attempts(run) if row["event"] == "start"]


def killed_inside_a_save(run: Path, text_file: Path, options: str, until: int) -> None:
    """Train on two ranks, and kill both once a step is logged."""
    place = f"train.max_steps=11 run.dir={run} data=text data.path={text_file}"
    take(*f"{SMALL} {LAYOUTS['fsdp2']} {options} {place}".split())
    (run / "batches").mkdir()
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    fork = multiprocessing.get_context("fork").Process
    ranks = [fork(target=rank_of, args=(run, rank, where)) for rank in range(2)]
    with forking():
        for process in ranks:
            process.start()
    end = time.monotonic() + 100
    while max(logged(run, "train/loss"), default=0) < until and time.monotonic() < end:
        time.sleep(0.01)
    for process in ranks:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


def test_training_goes_on_beside_a_save_and_an_interrupted_one_is_not_taken(
    train: Train, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save of step 8 hangs on one node: two more are made, and step 6 is the newest left."""
    options = LOCAL.format(tmp_path)
    whole = stored(step_of(train("whole", "fsdp2", 11, "checkpoint.interval=100"), 11))
    run, complete = tmp_path / "run", LocalTier._complete

    def hang(tier: LocalTier, scratch: Path, about: dict) -> None:
        if about["step"] == 8 and tier.ranks.rank == 1:
            time.sleep(1000)
        complete(tier, scratch, about)

    with monkeypatch.context() as patch:
        patch.setattr(LocalTier, "_complete", hang)
        killed_inside_a_save(run, text_file, options, until=10)
    disks = [tmp_path / f"node_{node}" for node in range(2)]
    names = [sorted(path.name for path in next(disk.iterdir()).iterdir()) for disk in disks]
    assert names == [[".step_8.partial", "step_4"]] * 2
    train("run", "fsdp2", 11, options)
    assert started_at(run) == [0, 6]
    assert_bit_equal(stored(step_of(run, 11)), whole)
    shutil.rmtree(step_of(run, 11))
    shutil.rmtree(step_of(run, 6))
    (run / "result.json").unlink()
    shutil.rmtree(disks[0])  # its part comes from node 1
    train("run", "fsdp2", 11, options)
    assert started_at(run) == [0, 6, 8]
    assert_bit_equal(stored(step_of(run, 11)), whole)
