"""When a run ends: steps, epochs, time, a target, no improvement; and in which order its callbacks
hear of it.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import logged

from forge.config.eval import Eval
from forge.rundir import saved_config
from forge.training.assemble import Parts, assemble
from forge.training.signals import Signals
from forge.training.stopping import EarlyStopping, TimeLimit


@pytest.mark.parametrize(
    ("options", "stable"),
    [
        ((), None),
        (("scheduler=wsd", "scheduler.warmup_steps=2"), True),
        (("scheduler.decay_steps=77",), None),
    ],
)
def test_max_epochs_becomes_steps_and_the_schedule_follows(
    new_run: Callable[..., Path], options: tuple[str, ...], stable: bool | None
) -> None:
    path = new_run("train.max_steps=10000", "train.max_epochs=0.05", *options)
    parts = assemble(path)
    sequences = (len(parts.prepared.train) - 1) // 16
    steps = math.ceil(0.05 * sequences / 4)
    assert 5 < steps < 100
    schedule: Any = parts.config.scheduler
    if stable:
        assert schedule.decay_steps == round(0.2 * steps)
        assert schedule.stable_steps == steps - 2 - schedule.decay_steps
    else:
        assert schedule.decay_steps == (77 if options else steps - 2)
    assert parts.config.train.max_steps == steps
    assert (
        saved_config.load(path / "config.yaml", trust=()).train.max_steps == 10000
    )  # what was asked for
    derived = {d["key"]: d["value"] for d in json.loads((path / "derived.json").read_text())}
    assert derived["train.max_steps"] == steps
    assert derived.get("scheduler.decay_steps", 77) == schedule.decay_steps
    parts.loop.run()
    assert max(logged(path, "lr")) == steps
    if not options:
        assert logged(path, "lr")[steps] == pytest.approx(0.1 * 0.01)  # the floor, at the last step


class FakeLoop:
    """What a callback asks of a loop, with a clock set by hand."""

    def __init__(self) -> None:
        self.state, self.reason, self.seconds, self.seconds_before = (
            type("State", (), {"step": 10})(),
            None,
            0.0,
            0.0,
        )

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason

    def training_seconds(self) -> float:
        return self.seconds


def test_time_of_the_resumed_run_counts() -> None:
    loop, limit = FakeLoop(), TimeLimit(1.0)
    loop.seconds_before = 40.0
    for seconds, requested in ((19.9, 0), (20.0, 1)):
        loop.seconds = seconds
        assert limit.requested(loop) == requested  # type: ignore[arg-type]
    limit.act(loop, 1)  # type: ignore[arg-type]
    assert loop.reason == "max_time"


def test_a_checkpoint_keeps_the_time_that_was_trained(
    trained: Callable[..., Path], new_run: Callable[..., Path]
) -> None:
    """Over two starts it adds up, and a run without a limit keeps it too."""
    first = trained("train.max_steps=3") / "checkpoints" / "step_3"
    used = json.loads((first / "meta.json").read_text())["seconds"]
    assert 0 < used < 30
    path = new_run("train.max_steps=6", f"checkpoint.resume_from={first}")
    assert assemble(path).loop.seconds_before == used
    loop = assemble(path).loop
    loop.run()
    total = json.loads((path / "checkpoints" / "step_6" / "meta.json").read_text())["seconds"]
    assert used < total <= used + loop.training_seconds()


def stops_at(values: list[float], **options: Any) -> tuple[int, str] | None:
    """Number of the evaluation that stops the run, and why."""
    callback, loop = EarlyStopping(Eval(interval=10, **options)), FakeLoop()
    for number, value in enumerate(values, start=1):
        loop.state.step = 10 * number
        found = {"loss": value, "token_accuracy": value}
        callback.on_evaluation(loop, found)  # type: ignore[arg-type]
        if loop.reason:
            return number, loop.reason
    return None


def test_target_in_both_directions() -> None:
    assert stops_at([3.0, 2.0, 1.9], target=2.0) == (2, "target")
    assert stops_at([3.0, 2.01], target=2.0) is None
    assert stops_at([0.1, 0.5, 0.6], target=0.5, metric="token_accuracy") == (2, "target")
    assert stops_at([0.1, 0.49], target=0.5, metric="token_accuracy") is None


def test_patience_counts_evaluations_without_improvement() -> None:
    assert stops_at([3.0, 2.0, 2.1, 2.0, 1.0], patience=2) == (4, "patience")
    assert stops_at([3.0, 2.0, 2.1, 1.9, 2.0, 1.8], patience=2) is None
    assert stops_at([0.3, 0.4, 0.4, 0.3], patience=2, metric="token_accuracy") == (4, "patience")
    assert stops_at([0.3, 0.2, 0.4, 0.3, 0.5], patience=2, metric="token_accuracy") is None
    assert stops_at([1.0, 2.0, 3.0, 4.0], patience=0) is None


def test_min_delta_is_the_least_improvement() -> None:
    assert stops_at([3.0, 2.95, 2.91], patience=2, min_delta=0.1) == (
        3,
        "patience",
    )  # both within 0.1 of the best
    assert stops_at([3.0, 2.95, 2.85, 2.8], patience=2, min_delta=0.1) is None
    assert stops_at([0.5, 0.55, 0.58], patience=2, min_delta=0.1, metric="token_accuracy") == (
        3,
        "patience",
    )


def test_a_nan_never_improves() -> None:
    assert stops_at([3.0, math.nan, math.nan], patience=2) == (3, "patience")
    assert stops_at([math.nan, 3.0, 3.1, 3.1], patience=2) == (4, "patience")


def test_the_evaluation_of_the_end_is_no_part_of_patience() -> None:
    callback, loop = EarlyStopping(Eval(interval=10, patience=2)), FakeLoop()
    callback.on_evaluation(loop, {"loss": 2.0})  # type: ignore[arg-type]
    loop.state.step = 17
    callback.on_evaluation(loop, {"loss": 1.0})  # type: ignore[arg-type]
    assert callback.state_dict() == {"best": 2.0, "waited": 0}


def test_target_and_patience_end_a_real_run(trained: Callable[..., Path]) -> None:
    evaluate = (
        "eval.enabled=true",
        "eval.interval=2",
        "eval.steps=2",
        "eval.sample_tokens=0",
        "train.max_steps=40",
    )
    path = trained(*evaluate, "eval.target=5.6")
    losses, result = logged(path, "eval/loss"), json.loads((path / "result.json").read_text())
    assert result["reason"] == "target"
    assert result["step"] == max(losses) < 40
    assert [step for step, loss in losses.items() if loss <= 5.6] == [result["step"]]
    assert result["metrics"]["eval/loss"] == losses[result["step"]]
    assert result["metrics"]["eval/step"] == result["step"]
    path = trained(*evaluate, "eval.patience=2", "eval.min_delta=100")
    result = json.loads((path / "result.json").read_text())
    assert (result["reason"], result["step"]) == ("patience", 6)
    assert (path / "checkpoints" / "step_6").is_dir()


def test_the_thread_that_hears_signals_ends_with_the_run(
    assembled: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could free the process groups while Python ends, which aborts: "terminate called
    without an active exception".
    """
    watch = Signals._watch

    def slowly(signals: Signals, arrivals: socket.socket) -> None:
        watch(signals, arrivals)
        time.sleep(0.3)

    monkeypatch.setattr(Signals, "_watch", slowly)
    before = threading.enumerate()
    assembled("train.max_steps=1").loop.run()
    assert threading.enumerate() == before


def test_overfit_batches_reads_the_same_data_again(assembled: Callable[..., Parts]) -> None:
    seen: list[torch.Tensor] = []
    for option in ("data.overfit_batches=2", "data.overfit_batches=0"):
        parts = assembled(option)
        hook = parts.model.embedding.register_forward_pre_hook(
            lambda module, x: seen.append(x[0].clone())
        )
        parts.loop.run()
        hook.remove()
    repeated, fresh = seen[:6], seen[6:]
    assert all(torch.equal(repeated[i], repeated[i % 2]) for i in range(6))
    assert torch.equal(repeated[0], fresh[0])
    assert torch.equal(repeated[1], fresh[1])
    assert len({tuple(x.flatten().tolist()) for x in fresh}) == 6
