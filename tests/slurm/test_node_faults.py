"""Faults of nodes and of the controller on a real Slurm: two nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TINY
from one_box import NODES, OneBox

from forge import cli
from forge.config.launch import Slurm
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm import queue
from forge.launch.slurm.restart import START
from forge.rundir import directory
from forge.rundir.wall_clock.goodput import read_goodput

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
SLOWLY = ["run.trust=[pace.]", "+callbacks.pace._target_=pace.Pace", "+callbacks.pace.seconds=0.5"]
TWO_RANKS = ["parallel=ddp", "run.num_processes=2", "train.batch_size=2"]
STEPS = ["train.max_steps=40", "checkpoint.interval=5"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory as `forge.train launch=slurm` makes it, and its job."""

    path: Path
    job: str

    @property
    def losses(self) -> dict[int, float]:
        rows = (json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["train/loss"] for row in rows}

    def rows(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.path / "attempts.jsonl").read_text().splitlines())
        return [row for row in lines if row["event"] == event]

    def printed(self) -> str:
        file = slurm.job_log(self.path)
        return file.read_text() if file and file.exists() else "nothing"

    def reaches(self, step: int) -> None:
        wait_for(
            lambda: (self.path / "metrics.jsonl").exists() and max(self.losses, default=0) >= step
        )


Submit = Callable[..., Run]


@pytest.fixture
def submit(tmp_path: Path, text_file: Path, one_box_slurm: OneBox) -> Iterator[Submit]:
    """Submit a small run by its name and overrides; its job is gone after the test."""
    submitted: list[str] = []
    common = [*TINY, "model.n_layers=1", "data=text", f"data.path={text_file}", *STEPS, *SLOWLY]

    def run(name: str, *overrides: str) -> Run:
        words = [*common, "launch=slurm", "launch.gpus_per_node=0", *overrides]
        composition, resolution = cli.resolved([*words, f"run.dir={tmp_path / name}"])
        path, _ = directory.prepare_directory(resolution, overrides=composition.overrides)
        section = resolution.config.launch
        assert isinstance(section, Slurm)
        point = (path, resolution.world.size)
        trust = ["pace.", "trouble.", "kill_double."]
        (job,) = slurm.submit_jobs(
            [point], section, name=name, folder=tmp_path / "jobs", trust=trust
        )
        submitted.append(job)
        return Run(path=path, job=job)

    yield run
    queue.cancel_jobs(submitted)
    queue.wait_for_jobs(submitted, poll=0.2)


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def rank_process(run: Run, rank: int) -> int:
    sign = run.path / "alive" / f"rank_{rank}"
    wait_for(sign.exists)
    return json.loads(sign.read_text())["process"]


def test_a_killed_rank_has_its_job_queued_again_without_its_node(
    submit: Submit, one_box_slurm: OneBox
) -> None:
    """The log names the node; the job continues on the other, and its losses are those of a run
    left alone.
    """
    run = submit("killed", *TWO_RANKS, "launch.max_restarts=2", "launch.max_requeues=0")
    run.reaches(12)
    before = queue.job_fields(run.job)["NodeList"]
    os.kill(rank_process(run, 1), signal.SIGKILL)
    assert queue.wait_for_jobs([run.job], poll=0.5) == {run.job: "COMPLETED"}, run.printed()
    fields = queue.job_fields(run.job)
    (other,) = {*NODES} - {before}
    assert (fields["NodeList"], fields["ExcNodeList"]) == (other, before)
    said = f"task 1 on {before}: Killed; queueing the job again, without node {before} (restart 1"
    assert said in run.printed()
    assert run.printed().count(START.partition("{")[0]) == 2
    starts, (restart,) = run.rows("start"), run.rows("restart")
    assert [row["step"] for row in starts] == [0, restart["reached"] // 5 * 5]
    assert restart["excluded"] == [before]
    assert run.losses == undisturbed(submit, *TWO_RANKS)


def test_a_job_goes_on_on_the_node_that_is_left(submit: Submit) -> None:
    """run.elastic lets two ranks on two nodes become one; the samples stay, and so does each loss,
    in float64, within 1e-5.
    """
    double = ["run.trust=[pace.,kill_double.]", "+callbacks.double._target_=kill_double.Double"]
    apart = [*TWO_RANKS, *double, "launch.nodes=2", "launch.tasks_per_node=1"]
    run = submit("elastic", *apart, "run.elastic=1:2", "launch.max_restarts=2")
    run.reaches(12)
    assert queue.job_fields(run.job)["NumNodes"] == "2"
    os.kill(rank_process(run, 1), signal.SIGKILL)
    assert queue.wait_for_jobs([run.job], poll=0.5) == {run.job: "COMPLETED"}, run.printed()
    (restart,), fields = run.rows("restart"), queue.job_fields(run.job)
    assert restart["excluded"] == [fields["ExcNodeList"]]
    assert {fields["NodeList"], fields["ExcNodeList"]} == {*NODES}
    assert "queueing the job again, without node" in run.printed()
    assert "laid out over 1 rank, as Slurm has started the job" in run.printed()
    assert [row["config"] for row in run.rows("start")] == ["config.yaml", "config.2.yaml"]
    expected = undisturbed(submit, *apart)
    assert run.losses.keys() == expected.keys()
    assert max(abs(run.losses[step] - expected[step]) for step in expected) < 1e-5
    spent = read_goodput(run.path)
    assert spent is not None
    assert spent.seconds["restart"] > 0
    assert "idle" not in spent.seconds


def undisturbed(submit: Submit, *overrides: str) -> dict[int, float]:
    alone = submit("alone", *overrides, "callbacks.pace.seconds=0")
    assert queue.wait_for_jobs([alone.job], poll=0.5) == {alone.job: "COMPLETED"}, alone.printed()
    return alone.losses


def test_a_run_that_makes_no_progress_is_not_started_again(submit: Submit, tmp_path: Path) -> None:
    """A rank that raises is started on any node, three times; and the job is FAILED."""
    trouble = ["run.trust=[pace.,trouble.]", "+callbacks.trouble._target_=trouble.Trouble"]
    words = [*trouble, "+callbacks.trouble.what=raise", "+callbacks.trouble.rank=0"]
    on_end = f"run.on_end='echo $FORGE_STATUS >> {tmp_path}/ended'"
    run = submit("raising", *words, "launch.max_restarts=9", "callbacks.pace.seconds=0", on_end)
    assert queue.wait_for_jobs([run.job], poll=0.5) == {run.job: "FAILED"}, run.printed()
    assert "3 starts in a row have not come beyond step 2" in run.printed()
    assert [row["excluded"] for row in run.rows("restart")] == [[], [], []]
    assert queue.job_fields(run.job)["Restarts"] == "3"
    wait_for((tmp_path / "ended").exists, 10)
    assert (tmp_path / "ended").read_text() == "failed\n"


def test_a_node_that_is_lost_has_its_job_queued_again_by_slurm(
    submit: Submit, one_box_slurm: OneBox
) -> None:
    """With its batch script, so that nothing of forge's is left to see it."""
    run = submit("down", *TWO_RANKS)
    run.reaches(12)
    before = queue.job_fields(run.job)["NodeList"]
    one_box_slurm.lose(before)
    try:
        ends = queue.wait_for_jobs([run.job], poll=0.5)
    finally:
        one_box_slurm.bring_back(before)
    assert ends == {run.job: "COMPLETED"}, run.printed()
    fields = queue.job_fields(run.job)
    assert fields["NodeList"] in {*NODES} - {before}
    assert fields["Restarts"] == "1"
    assert [row["step"] for row in run.rows("start")] == [0, 10]
    assert run.losses == undisturbed(submit, *TWO_RANKS)


def test_a_run_goes_on_while_the_controller_restarts(submit: Submit, one_box_slurm: OneBox) -> None:
    """And who waits for it hears of its end."""
    run = submit("controller", "callbacks.pace.seconds=0.3")
    run.reaches(3)
    controller = one_box_slurm.daemons[1]
    controller.terminate()
    controller.wait(30)
    began = max(run.losses)
    run.reaches(began + 5)
    one_box_slurm.daemon("slurmctld", "-D", "-f", str(one_box_slurm.conf))
    one_box_slurm.daemons[1] = one_box_slurm.daemons.pop()
    assert queue.wait_for_jobs([run.job], poll=0.5) == {run.job: "COMPLETED"}, run.printed()
    assert queue.job_fields(run.job)["Restarts"] == "0"
    assert len(run.losses) == 40
