"""Replica groups by torchft: equal to data parallelism, and one killed and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forge
from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.training.replicas.equal_options import Member, common_options, fault

REPOSITORY = Path(__file__).parents[2]


def test_groups_divide_the_batch_as_ranks_do() -> None:
    """Two groups of three ranks read the six parts of a batch, in the order of ranks."""
    parts = [
        FaultTolerance(enabled=True, replica_id=group, group_size=2).part_of(rank, 3)
        for group in range(2)
        for rank in range(3)
    ]
    assert parts == [(part, 6) for part in range(6)]
    assert FaultTolerance().part_of(1, 3) == (1, 3)


@pytest.mark.nightly
@pytest.mark.skipif(FaultTolerance.has_torchft(), reason="torchft is installed")
def test_without_torchft_a_run_is_refused_with_one_message(tmp_path: Path) -> None:
    words = ["fault_tolerance=torchft", "fault_tolerance.lighthouse=http://localhost:1"]
    command = [sys.executable, "-m", "forge.train", *words, f"run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert done.returncode == 2
    assert "torchft is not installed" in done.stderr + done.stdout
    assert "pip install 'forge-lm[torchft]'" in done.stderr + done.stdout
    assert not (tmp_path / "run").exists()


def member(
    replica_id: int, *overrides: str, step: int = 0, trained: bool = False, ranks: int = 1
) -> Member:
    config = forge.compose(["train.batch_size=2", "train.max_steps=30", *overrides])
    options = common_options(config.validate(world_size=ranks).config)
    return Member(replica_id=replica_id, step=step, trained=trained, ranks=ranks, options=options)


@pytest.mark.nightly
def test_groups_with_other_options_are_named_by_option() -> None:
    """Each unequal option is named once, by its cause; places, logs and evaluation may differ."""
    first = member(0, "optimizer=adamw", "optimizer.lr=0.001", "train.global_batch_size=8")
    same = "optimizer=adamw", "optimizer.lr=0.001", "train.global_batch_size=8"
    free = "run.dir=elsewhere", "eval.enabled=false", "checkpoint=off", "metrics.log_interval=7"
    assert fault(member(1, *same, *free), [first, member(1, *same, *free)]) == ""
    for word, expected in {
        "optimizer.lr=0.002": "optimizer.lr=0.002 instead of 0.001. Give it optimizer.lr=0.001",
        "train.global_batch_size=16": "train.global_batch_size=16 instead of 8. Give it ",
        "train.batch_size=4": "train.batch_size=4 instead of 2. Give it train.batch_size=2",
        "optimizer=lion": "optimizer=lion instead of adamw. Give it optimizer=adamw",
        "seed=7": "seed=7 instead of 42. Give it seed=42",
        "train.max_steps=40": "train.max_steps=40 instead of 30. Give it train.max_steps=30",
    }.items():
        key = word.partition("=")[0]
        others = [one for one in same if not one.startswith(key)]
        other = member(1, *others, word)
        said = fault(other, [first, other])
        assert said.startswith(f"fault_tolerance: replica group 1 differs from group 0: {expected}")
        assert said.count(" instead of ") == 1
        assert fault(first, [first, other]) == ""


def test_the_group_that_trains_stays() -> None:
    """Also where a group with a lower number or a later checkpoint comes to it; and two groups of
    one number are told.
    """
    training = member(1, "seed=1", step=9, trained=True)
    coming = member(0, "seed=2", step=20)
    assert fault(training, [coming, training]) == ""
    assert "seed=2 instead of 1" in fault(coming, [coming, training])
    twin = member(1, "seed=1")
    assert "fault_tolerance.replica_id=1: another replica group" in fault(twin, [training, twin])


def test_groups_of_other_sizes_are_named_by_their_ranks() -> None:
    """Once, without the options that follow from the number."""
    first, second = member(0), member(1, ranks=2)
    said = fault(second, [first, second])
    assert said.startswith("fault_tolerance: replica group 1 has 2 ranks, and group 0 has 1 rank:")
    assert said.endswith("Start it with 1 rank, as by run.num_processes=1")
    assert fault(first, [first, second]) == ""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's script, which starts groups as processes."""
    pytest.importorskip("torchft")
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks" / "learning"))
    import replica_groups  # type: ignore[import-not-found]

    return replica_groups


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_two_groups_are_data_parallelism(script, tmp_path: Path, ranks: int) -> None:
    """Losses of 20 steps are those of one run of all ranks, in fp32; two ranks have FSDP."""
    server = script.lighthouse(2)
    try:
        equal = script.as_data_parallel(script.Groups(tmp_path, server.address()), ranks=ranks)
    finally:
        server.shutdown()
    assert equal["loss"] <= 1e-6
    assert equal["between groups"] == 0.0


@pytest.mark.nightly
def test_a_group_with_other_options_is_refused(script, tmp_path: Path) -> None:
    """With one message and exit code 2, and without a directory; the other makes all its steps."""
    server = script.lighthouse(1)
    groups = script.Groups(tmp_path, server.address())
    options = "train.max_steps=400", "run.num_processes=1", *script.SLOW.split()
    try:
        first = groups.start("first", 0, *options)
        groups.wait_for("first", 2)
        second = groups.start("second", 1, *options, "optimizer.lr=0.007")
        assert second.wait(240) == 2
        refused_at = groups.last_step("first")
        script.finish(first)
    finally:
        server.shutdown()
    said = "replica group 1 differs from group 0: optimizer.lr=0.007 instead of "
    assert (tmp_path / "second.log").read_text().count(said) == 1
    assert not (tmp_path / "second").exists()
    assert (tmp_path / "first.log").read_text().count(said) >= 1
    rows = groups.rows("first")
    assert refused_at < len(rows) == 400
    assert {row["train/participants"] for row in rows} == {1.0}


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "others"), [(2, 1), (1, 2)])
def test_a_group_of_another_size_is_refused_at_once(
    script, tmp_path: Path, ranks: int, others: int
) -> None:
    """Also a rank without a counterpart waits for nobody: the timeout is longer than the test."""
    server = script.lighthouse(1)
    groups = script.Groups(tmp_path, server.address())
    steps = 250 * others  # two ranks take longer to come
    patient = "fault_tolerance.process_group_timeout_ms=600000"

    def start(name: str, number: int, size: int) -> subprocess.Popen[bytes]:
        options = [f"train.max_steps={steps}", *script.SLOW.split(), patient]
        options += [f"run.num_processes={size}", f"train.batch_size={4 // size}"]
        return groups.start(name, number, *options, *(["parallel=fsdp"] if size > 1 else []))

    try:
        first = start("first", 0, ranks)
        groups.wait_for("first", 2)
        second = start("second", 1, others)
        assert second.wait(240) == 2
        refused_at = groups.last_step("first")
        script.finish(first)
    finally:
        server.shutdown()
    sizes = {1: "1 rank", 2: "2 ranks"}
    said = f"replica group 1 has {sizes[others]}, and group 0 has {sizes[ranks]}: "
    assert (tmp_path / "second.log").read_text().count(said) == 1
    assert (tmp_path / "first.log").read_text().count(said) >= 1
    assert refused_at < len(groups.rows("first")) == steps


@pytest.mark.nightly
def test_a_killed_group_heals(script, tmp_path: Path) -> None:
    """The other continues without it; started again, it has the other's weights to the bit."""
    server = script.lighthouse(1)
    try:
        killed = script.killed_and_healed(script.Groups(tmp_path, server.address()), steps=240)
    finally:
        server.shutdown()
    assert killed["steps alone"] > 0
    assert killed["joined at"] > killed["died after"] + 1
    assert killed["last participants"] == 2.0
    assert killed["weights"] == 0.0
