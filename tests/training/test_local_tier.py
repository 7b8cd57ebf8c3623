"""Checkpoints on the disks of nodes, which are folders here: a lost node, a kill, and refusals."""

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
from run_helpers import assert_bit_equal, folders, logged, read, step_of, stored

from forge.config.problems import ConfigError
from forge.launch.local.processes import free_port
from forge.parallel.ranks import Ranks
from forge.rundir import outcome
from forge.training.checkpoints.local_tier import Nodes, _check_folders

LOCAL = "checkpoint.local_interval=4 checkpoint.local_ranks=1 checkpoint.local_dir={}/node_%n"


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


def take_away_the_last(run: Path, step: int) -> None:
    """Leave a run as if it had been killed at the end, before the save of the last step."""
    shutil.rmtree(step_of(run, step))
    (run / "result.json").unlink()


def started_at(run: Path) -> list[int]:
    return [row["step"] for row in outcome.attempts(run) if row["event"] == "start"]


def test_a_lost_node_s_part_comes_from_its_partner(train: Train, tmp_path: Path) -> None:
    options = LOCAL.format(tmp_path)
    run = train("run", "fsdp2", 11, options, "checkpoint.interval=3")
    whole = stored(step_of(run, 11))
    disks = [*tmp_path.glob("node_*/*")]
    assert [sorted(p.name for p in disk.iterdir()) for disk in disks] == [["step_4", "step_8"]] * 2
    take_away_the_last(run, 11)
    shutil.rmtree(tmp_path / "node_0")
    shutil.rmtree(step_of(run, 9))  # so that the newest on shared storage is step 6
    train("run", "fsdp2", 11, options, "checkpoint.interval=3")
    assert started_at(run) == [0, 8], "the newest complete one is that of the disks"
    assert_bit_equal(stored(step_of(run, 11)), whole)
    assert read(step_of(run, 8) / "meta.json")["reason"] == "local_interval"


@pytest.mark.nightly
def test_the_newest_of_both_that_is_complete_is_taken(train: Train, tmp_path: Path) -> None:
    """With newer ones on shared storage, with too many nodes lost, and on other ranks."""
    options = LOCAL.format(tmp_path)
    run = train("run", "fsdp4", 11, options, "checkpoint.interval=5")
    whole, curve = stored(step_of(run, 11)), logged(run, "train/loss")
    take_away_the_last(run, 11)
    train("run", "fsdp4", 11, options, "checkpoint.interval=5")
    assert started_at(run)[-1] == 10
    assert_bit_equal(stored(step_of(run, 11)), whole)
    take_away_the_last(run, 11)
    shutil.rmtree(step_of(run, 10))
    for node in (1, 2):  # neighbours: the part of node 1 was on itself and on node 2
        shutil.rmtree(tmp_path / f"node_{node}")
    train("run", "fsdp4", 11, options, "checkpoint.interval=5")
    assert started_at(run)[-1] == 5
    assert_bit_equal(stored(step_of(run, 11)), whole)
    assert not [name for name in folders(run) if "partial" in name]
    take_away_the_last(run, 11)
    shutil.rmtree(step_of(run, 10))
    train("run", "fsdp2", 11, options, "checkpoint.interval=5", "train.batch_size=4")
    assert started_at(run)[-1] == 5, "four disks are read by two ranks: half is not in reach"
    assert logged(run, "train/loss")[11] == pytest.approx(curve[11], rel=1e-5)


@pytest.mark.nightly
def test_a_node_that_is_deleted_costs_at_most_the_interval(
    train: Train, tmp_path: Path, text_file: Path
) -> None:
    options = f"{LOCAL.format(tmp_path)} train.max_steps=30 checkpoint.interval=0"
    whole = stored(step_of(train("whole", "fsdp4", 30), 30), "model/")
    run = tmp_path / "run"
    place = f"run.dir={run} data=text data.path={text_file}"
    path, _ = take(*f"{SMALL} {LAYOUTS['fsdp4']} {options} {place}".split())
    (path / "batches").mkdir()
    where = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    fork = multiprocessing.get_context("fork").Process
    ranks = [fork(target=rank_of, args=(path, rank, where)) for rank in range(4)]
    with forking():
        for process in ranks:
            process.start()
    end = time.monotonic() + 100
    while max(logged(path, "train/loss"), default=0) < 14 and time.monotonic() < end:
        time.sleep(0.02)
    for process in ranks:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    reached = max(logged(path, "train/loss"))
    assert reached >= 14
    shutil.rmtree(tmp_path / "node_2")
    train("run", "fsdp4", 30, options)
    begun = started_at(run)[-1]
    assert 0 <= reached - begun <= 4, (reached, begun)
    assert_bit_equal(stored(step_of(run, 30), "model/"), whole)


def test_a_save_follows_the_save_before(assembled) -> None:
    """checkpoint.continuous: as soon as one is written, and never two at a time."""
    options = "checkpoint.continuous=true checkpoint.async_mode=async checkpoint.keep_last_n=0"
    loop = assembled(options, "checkpoint.interval=0 train.max_steps=12 eval=off")
    saving, idle = loop.callbacks[-1], []
    save = saving.save
    saving.save = lambda *arguments: (idle.append(saving.checkpointer.is_idle), save(*arguments))
    loop.run()
    assert len(idle) >= 2
    assert all(idle[:-1])
    reasons = [
        read(loop.run_dir / "checkpoints" / n / "meta.json")["reason"]
        for n in folders(loop.run_dir)
    ]
    assert reasons.count("continuous") == len(idle) - 1


def test_a_partner_on_the_same_node_is_refused(
    tmp_path: Path, text_file: Path, monkeypatch
) -> None:
    words = f"{SMALL} data=text data.path={text_file} run.dir={tmp_path / 'run'}".split()
    local = f"checkpoint.local_interval=4 checkpoint.local_dir={tmp_path}".split()
    with pytest.raises(ConfigError, match="a node is no partner of its own"):
        take(*words, *local)
    take(*words, *local, "checkpoint.local_partner=false")
    two = ["run.num_processes=2", "checkpoint.local_ranks=1"]
    path, _ = take(*words, *local, *two, f"run.dir={tmp_path / 'two'}")  # only its ranks can see
    ranks = Ranks(size=2)
    monkeypatch.setattr(Ranks, "of_all", lambda self, value: [value, value])
    from forge.rundir import saved_config

    section = saved_config.load_own(path).checkpoint
    with pytest.raises(ValueError, match=r"partner of node 0 is node 1, with the same .*Give more"):
        Nodes.of(section, ranks, "id")


def test_a_disk_that_takes_no_saves_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch
) -> None:
    """A rank that leads no node says it too, by the rank that does."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"local_dir: .*/file/id on .*: Not a directory"):
        _check_folders(Ranks(), tmp_path / "file" / "id")
    fault = "/node on b: No space left on device"
    with monkeypatch.context() as patch:
        patch.setattr(Ranks, "of_all", lambda self, value: [value, fault])
        with pytest.raises(ValueError, match=f"local_dir: {fault}. Give a folder on a disk of"):
            _check_folders(Ranks(size=2), None)
    monkeypatch.setattr(Path, "rename", lambda *_: os.rename("/absent", "/other"))
    with pytest.raises(ValueError, match="folders cannot be renamed there"):
        _check_folders(Ranks(), tmp_path / "node")
    assert not (tmp_path / "node").exists()
