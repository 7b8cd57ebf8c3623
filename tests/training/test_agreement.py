"""What one of several ranks wishes all do after the same step, and a step without a wish sends no
message for it.
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
from ranks import on_ranks

from forge.launch.local.processes import free_port
from forge.parallel.ranks import Ranks
from forge.rundir import checkpoints
from forge.training import assemble as assembling
from forge.training.callback import Callback
from forge.training.stopping import TimeLimit

LAYOUT = (
    "parallel=fsdp",
    "run.num_processes=2",
    "run.inline=false",
    "train.batch_size=2",
    "train.max_steps=12",
)


class Acting(Callback):
    """Does something at the end of a step, on one rank."""

    def __init__(self, rank: int, step: int, act: Callable[[Any], object]) -> None:
        self.here, self.step, self.act = int(os.environ["RANK"]) == rank, step, act

    def on_step_end(self, loop: Any, output: Any) -> None:
        if self.here and loop.state.step == self.step:
            self.act(loop)


def run_on_two(
    path: Path,
    callbacks: Callable[[], list[Callback]],
    change: Callable[[Any], object] = lambda parts: None,
) -> list[dict[str, Any]]:
    """Train a run on two forked ranks; of each why it ended, at which step, and how often it asked
    all ranks something.
    """
    port = free_port()

    def work(rank: int) -> None:
        dist.destroy_process_group()
        os.environ.update(
            RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        asked: list[int] = []
        largest = Ranks.largest
        assembling.user_callbacks = lambda config: callbacks()
        parts = assembling.assemble(path)
        change(parts)
        Ranks.largest = lambda self, *numbers: (
            asked.append(parts.loop.state.step) or largest(self, *numbers)
        )  # type: ignore[method-assign]
        reason = parts.loop.run()
        (path / f"ended_{rank}").write_text(
            json.dumps({"reason": reason, "step": parts.loop.state.step, "asked": asked})
        )

    on_ranks(2, work)
    return [json.loads((path / f"ended_{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_any_rank_ends_all_at_its_step(new_run: Callable[..., Path], rank: int) -> None:
    """Where it would end one rank alone; and that step is saved."""
    path = new_run(*LAYOUT)
    ended = run_on_two(path, lambda: [Acting(rank, 3, lambda loop: loop.stop("mine"))])
    assert [(one["reason"], one["step"]) for one in ended] == [("mine", 3)] * 2
    assert [one.step for one in checkpoints.listed(path / "checkpoints")] == [3]


def test_a_signal_to_one_rank_ends_all_after_the_same_step(new_run: Callable[..., Path]) -> None:
    """It is heard with the next gradient norm; before that nobody asked."""
    path = new_run(*LAYOUT)

    def change(parts: Any) -> None:
        parts.loop.callbacks.append(Acting(1, 3, lambda _: os.kill(os.getpid(), signal.SIGUSR1)))

    ended = run_on_two(path, list, change)
    assert [(one["reason"], one["step"]) for one in ended] == [("SIGUSR1", 4)] * 2
    assert [one["asked"] for one in ended] == [[4]] * 2


def test_time_that_is_over_on_one_rank_is_over_on_all(
    new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_run(*LAYOUT, "train.max_time=100")
    monkeypatch.setattr(
        TimeLimit,
        "requested",
        lambda self, loop: int(os.environ["RANK"] == "1" and loop.state.step >= 5),
    )
    ended = run_on_two(path, list)
    assert [(one["reason"], one["step"]) for one in ended] == [("max_time", 6)] * 2


def test_no_wish_takes_no_message(new_run: Callable[..., Path]) -> None:
    ended = run_on_two(new_run(*LAYOUT), list)
    assert [(one["reason"], one["step"], one["asked"]) for one in ended] == [("end", 12, [])] * 2


def test_minutes_that_are_over_on_one_rank_save_on_all(new_run: Callable[..., Path]) -> None:
    path = new_run(*LAYOUT, "checkpoint.interval_minutes=60", "checkpoint.keep_last_n=0")

    def change(parts: Any) -> None:
        saving = parts.loop.callbacks[-1]
        if os.environ["RANK"] == "1":
            saving.requested = lambda loop: int(loop.state.step in (6, 7))

    run_on_two(path, list, change)
    assert {one.step: one.meta["reason"] for one in checkpoints.listed(path / "checkpoints")} == {
        7: "interval_minutes",
        12: "end",
    }
