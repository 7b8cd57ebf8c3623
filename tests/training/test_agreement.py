"""What one of several ranks requests all do after the same step, and a step without a request sends
no message for it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from helpers.ranks import on_ranks
from run_helpers import built, read

from forge.launch.local.processes import free_port
from forge.parallel.ranks import Ranks
from forge.rundir import checkpoints
from forge.training import build as building
from forge.training.callback import Callback

LAYOUT = "parallel=fsdp run.num_processes=2 run.inline=false train.batch_size=2 train.max_steps=12"


class Acting(Callback):
    """Does something at the end of a step, on one rank."""

    config_path = "callbacks.acting"

    def __init__(self, rank: int, step: int, act: Callable[[Any], object]):
        self.here, self.step, self.act = int(os.environ["RANK"]) == rank, step, act

    def on_step_end(self, loop, output):
        if self.here and loop.state.step == self.step:
            self.act(loop)


def run_on_two(path: Path, callbacks=list, change=lambda loop: None) -> list[dict[str, Any]]:
    """Train a run on two forked ranks; of each why it ended, at which step, and after which steps
    it asked all ranks something.
    """
    port = free_port()

    def work(rank: int):
        dist.destroy_process_group()
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", **where)
        asked: list[int] = []
        largest = Ranks.largest
        building.build_entries = lambda session: callbacks()
        loop = built(path)
        change(loop)
        state = loop.state
        Ranks.largest = lambda self, *numbers: asked.append(state.step) or largest(self, *numbers)
        found = {"reason": loop.run(), "step": state.step, "asked": asked}
        (path / f"ended_{rank}").write_text(json.dumps(found))

    on_ranks(2, work)
    return [read(path / f"ended_{rank}") for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_any_rank_ends_all_at_its_step(new_run, rank):
    """Where it would end one rank alone; and that step is saved."""
    path = new_run(LAYOUT)
    ended = run_on_two(path, lambda: [Acting(rank, 3, lambda loop: loop.stop("mine"))])
    assert [(one["reason"], one["step"]) for one in ended] == [("mine", 3)] * 2
    assert [one.step for one in checkpoints.list_checkpoints(path / "checkpoints")] == [3]


def test_a_signal_to_one_rank_ends_all_after_the_same_step(new_run):
    """It is noticed with the next gradient norm; before that no rank asked."""

    def change(loop):
        loop.callbacks.append(Acting(1, 3, lambda _: os.kill(os.getpid(), signal.SIGUSR1)))

    ended = run_on_two(new_run(LAYOUT), change=change)
    assert ended == [{"reason": "SIGUSR1", "step": 4, "asked": [4]}] * 2


def test_minutes_that_are_over_on_one_rank_save_on_all(new_run):
    path = new_run(LAYOUT, "checkpoint.interval_minutes=60 checkpoint.keep_last_n=0")

    def change(loop):
        if os.environ["RANK"] == "1":
            saving = loop.callbacks[-1]
            saving.requested = lambda loop: int(loop.state.step in (6, 7))

    run_on_two(path, change=change)
    saved = checkpoints.list_checkpoints(path / "checkpoints")
    assert {one.step: one.meta["reason"] for one in saved} == {7: "interval_minutes", 12: "end"}
