"""The logger across a stop: what it had gathered is logged as if nothing had happened."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forge.training.loop import Loop
from forge.training.metrics import Logger
from forge.training.state import TrainState
from forge.training.step import StepOutput
from forge.training.trackers import Trackers

CLOCK = {"tokens_per_second", "step_seconds", "memory_gib"}


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values: dict[str, float]) -> None:
        self.rows.append(
            (step, {name: value for name, value in values.items() if name not in CLOCK})
        )

    def close(self) -> None:
        """Nothing is held."""


class Drive:
    """A logger that is told of steps by hand, with a loop as far as it sees one."""

    interrupted = False

    def __init__(self, state: TrainState | None = None) -> None:
        self.state, self.recorder, trackers = state or TrainState(), Recorder(), Trackers()
        trackers.add("recorder", lambda: self.recorder)
        self.logger = Logger(
            lambda: trackers,
            interval=4,
            device=torch.device("cpu"),
            flops_per_token=None,
            peak=None,
        )
        self.loop: Loop = self  # type: ignore[assignment]
        self.clock = 0.0
        self.logger.on_start(self.loop)

    def training_seconds(self) -> float:
        self.clock += 0.5
        return self.clock

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.state.step += 1
            self.state.tokens += 7
            draw = torch.Generator().manual_seed(self.state.step)
            ce, z, norm = torch.rand(3, generator=draw) * 10 + 0.1
            output = StepOutput(
                n_targets=7,
                lr=0.1 / self.state.step,
                loss=ce,
                grad_norm=norm,
                skipped=torch.tensor(self.state.step == 6),
                sums={"z_loss": z, "ce": ce},
            )
            self.state.record(output)
            self.logger.on_step_end(self.loop, output)


def rows_of(*drives: Drive) -> str:
    return json.dumps([row for drive in drives for row in drive.recorder.rows])


@pytest.mark.parametrize("stop", range(1, 11))
def test_a_stop_between_two_logs_changes_no_bit_of_the_next(stop: int) -> None:
    whole = Drive()
    whole.steps(10)
    whole.logger.on_end(whole.loop)
    first = Drive()
    first.steps(stop)
    kept = json.loads(
        json.dumps(
            {"logger": first.logger.state_dict(), "train": first.state.state_dict()},
            allow_nan=False,
            sort_keys=True,
        )
    )
    first.interrupted = True
    first.logger.on_end(first.loop)
    second = Drive()
    second.state.load_state_dict(kept["train"])
    second.logger.load_state_dict(kept["logger"])
    second.steps(10 - stop)
    second.logger.on_end(second.loop)
    assert rows_of(first, second) == rows_of(whole)
    assert [row[0] for row in whole.recorder.rows] == [4, 8, 10]
    assert second.logger.last == whole.recorder.rows[-1][1]
    assert second.logger.state_dict() == whole.logger.state_dict()


def test_values_that_are_not_finite_survive_a_stop() -> None:
    drive = Drive()
    nothing = torch.tensor(math.nan)
    drive.state.step = 1
    drive.logger.on_step_end(
        drive.loop,
        StepOutput(
            n_targets=7,
            lr=0.1,
            loss=nothing,
            grad_norm=nothing,
            skipped=torch.tensor(True),
            sums={"ce": nothing},
        ),
    )
    kept = json.loads(json.dumps(drive.logger.state_dict(), allow_nan=False))
    other = Drive(drive.state)
    other.logger.load_state_dict(kept)
    other.logger.on_end(other.loop)
    ((step, row),) = other.recorder.rows
    assert step == 1
    assert math.isnan(row["train/loss"])
    assert math.isnan(row["train/grad_norm"])
    assert row["lr"] == 0.1
    last = {"train/loss": None, "train/grad_norm": None, "lr": 0.1, "tokens": 0, "skipped_steps": 0}
    assert json.dumps(other.logger.state_dict()["last"], allow_nan=False) == json.dumps(last)


def test_the_two_files_of_a_run(trained: Callable[..., Path]) -> None:
    path = trained("metrics.log_interval=4", "metrics.peak_tflops=1")
    rows = {
        name: [json.loads(line) for line in (path / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "performance.jsonl")
    }
    assert [set(row) for row in rows["metrics.jsonl"]] == [
        {"step", "train/loss", "train/grad_norm", "lr", "tokens", "skipped_steps"}
    ] * 2
    assert [set(row) for row in rows["performance.jsonl"]] == [{"step", "time", "mfu", *CLOCK}] * 2
    assert (
        [row["step"] for row in rows["metrics.jsonl"]]
        == [row["step"] for row in rows["performance.jsonl"]]
        == [4, 6]
    )
