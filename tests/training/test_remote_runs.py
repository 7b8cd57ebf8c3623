"""Runs whose checkpoints are copied to a server of S3, and resume where only the store has them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.s3_server import s3  # noqa: F401  (a fixture)
from layouts import SMALL, trains
from run_helpers import assert_bit_equal, folders, logged, step_of, stored

from forge import resume, train
from forge.rundir import outcome
from forge.rundir.remote.runs import fetch_run, listing_of
from forge.rundir.remote.store import Store
from forge.upload import __main__ as upload


def steps_in(store: Store) -> list[int]:
    with listing_of(store) as listing:
        return [saved.step for saved in listing.usable()]


def started_at(run: Path) -> list[int]:
    return [row["step"] for row in outcome.attempts(run) if row["event"] == "start"]


def fetch_in_fork(address: str, run: Path) -> int:
    """Bring a run here in a process of its own: ranks that are forked later have no threads."""

    def work() -> None:
        fetch_run(Store(address), run, to_go_on=True)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode or 0


@pytest.mark.nightly
def test_two_ranks_copy_and_the_run_goes_on_elsewhere(
    s3: str,  # noqa: F811
    tmp_path: Path,
    text_file: Path,
) -> None:
    run_for = trains(tmp_path, text_file)
    options = (f"checkpoint.remote={s3}/runs", "checkpoint.interval=3", "checkpoint.keep_last_n=1")
    run = run_for("run", "fsdp2", 7, *options)
    shutil.rmtree(run)
    assert fetch_in_fork(f"{s3}/runs/run", run) == 0
    assert folders(run) == ["step_7"]
    run_for("run", "fsdp2", 11, *options)
    assert started_at(run) == [0, 7]
    undisturbed = run_for("other", "fsdp2", 11, "checkpoint.interval=3")
    assert_bit_equal(stored(step_of(run, 11)), stored(step_of(undisturbed, 11)))
    assert logged(run, "train/loss") == logged(undisturbed, "train/loss")
    store = Store(f"{s3}/runs/run")
    assert steps_in(store) == [11]
    names = store.files("checkpoints/step_11/weights")
    assert len([name for name in names if "rank_" in name]) == 2


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Go to another machine: a working directory without runs."""

    def go(name: str) -> None:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)

    return go


def words(text_file: Path, *further: str) -> list[str]:
    place = f"data=text data.path={text_file} run.dir=runs/mine run.inline=true"
    return [*SMALL.split(), *place.split(), *further]


def test_the_same_command_on_a_fresh_machine(
    s3: str,  # noqa: F811
    text_file: Path,
    machine: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It continues; what a store refuses is said before anything starts."""
    typed = words(text_file, f"checkpoint.remote={s3}/runs")
    machine("first")
    assert train.main([*typed, "train.max_steps=2"]) == 0
    machine("second")
    assert train.main([*typed, "train.max_steps=4"]) == 0
    assert "runs/mine is not here; it is brought from s3://bucket/runs/mine" in _out(capsys)
    assert started_at(Path("runs/mine")) == [0, 2]
    assert steps_in(Store(f"{s3}/runs/mine")) == [2, 4]
    there = set(Store(f"{s3}/runs/mine").files())
    assert {"result.json", "report/index.html", "config.yaml", "metrics.jsonl"} <= there
    machine("third")
    assert train.main([*typed, "train.max_steps=8", "seed=2"]) == 2
    assert "seed" in capsys.readouterr().err, "the run of the store has another seed"
    machine("fourth")
    assert train.main([*typed, "checkpoint.remote=s3://nowhere/runs"]) == 2
    error = capsys.readouterr().err
    assert error.count("there is no nowhere in the store") == 1
    assert "checkpoint.remote=s3://nowhere/runs" in error
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert train.main(typed) == 2
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in capsys.readouterr().err
    assert not list(Path().iterdir())


@pytest.mark.nightly
def test_a_run_is_resumed_from_its_address(
    s3: str,  # noqa: F811
    text_file: Path,
    machine: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And from the store, where its checkpoints are lost; forge.upload copies one by hand."""
    remote = f"checkpoint.remote={s3}/runs"
    machine("first")
    assert train.main(words(text_file, remote, "train.max_steps=2")) == 0
    machine("second")
    assert resume.main([f"{s3}/runs/mine", "train.max_steps=4"]) == 0
    assert started_at(Path("runs/mine")) == [0, 2]
    shutil.rmtree("runs/mine/checkpoints")
    assert resume.main(["runs/mine", remote, "train.max_steps=6"]) == 0
    assert "no checkpoint is here; the newest is brought" in _out(capsys)
    assert started_at(Path("runs/mine")) == [0, 2, 4]
    assert upload.main(["runs/mine", f"{s3}/copies"]) == 0
    assert "s3://bucket/copies/mine: step 6 and the files of the run" in _out(capsys)
    assert steps_in(Store(f"{s3}/copies/mine")) == [6]
    machine("third")
    start = f"checkpoint.init_from={s3}/copies/mine"
    assert train.main(words(text_file, start, "train.max_steps=1", "scheduler.warmup_steps=0")) == 0
    assert "beginning with the weights of" in _out(capsys)


def _out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out
