"""When a run saves, what it keeps, and what is left when a save fails: the last checkpoint whole,
one message, nothing half done.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from going_on_helpers import alter
from run_helpers import assert_bit_equal, folders, logged, meta, stored, weights

from forge import checkpoints, worker
from forge.rundir import checkpoints as saved
from forge.training import staging
from forge.training.assemble import Parts, assemble
from forge.training.callback import Callback as LoopCallback

OFTEN = ("train.max_steps=5", "checkpoint.interval=2", "checkpoint.keep_last_n=0")
EVERY = (
    "checkpoint.interval=1",
    "checkpoint.keep_last_n=1",
    "checkpoint.keep_best=2",
    "eval.enabled=true",
    "eval.interval=1",
    "eval.sample_tokens=0",
)


def reasons(run: Path) -> dict[int, str]:
    return {one.step: one.meta["reason"] for one in saved.listed(run / "checkpoints")}


class At(LoopCallback):
    """Does something after update number `step`, before the run saves."""

    def __init__(self, step: int, act: Callable[[Any], None]) -> None:
        self.step, self.act = step, act

    def on_step_end(self, loop: Any, output: Any) -> None:
        if loop.state.step == self.step:
            self.act(loop)


def test_every_save_says_why(trained: Callable[..., Path]) -> None:
    assert reasons(trained(*OFTEN)) == {2: "interval", 4: "interval", 5: "end"}


def test_minutes_count_from_the_last_save(
    assembled: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 s a step and one save a minute; the save of the interval, at 3, begins the minute anew."""
    parts = assembled(
        "train.max_steps=9",
        "checkpoint.interval=3",
        "checkpoint.keep_last_n=0",
        "checkpoint.interval_minutes=1",
    )
    parts.loop.end_step, clock = 7, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    parts.loop.callbacks.insert(0, AtEach(lambda: clock.__setitem__(0, clock[0] + 30)))
    parts.loop.run()
    assert reasons(parts.loop.run_dir) == {
        2: "interval_minutes",
        3: "interval",
        5: "interval_minutes",
        6: "interval",
        7: "end",
    }


class AtEach(LoopCallback):
    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def on_step_end(self, loop: Any, output: Any) -> None:
        self.act()


def evaluating(monkeypatch: pytest.MonkeyPatch, metric: str, values: list[float]) -> None:
    """Evaluations that find these values, one after the other, unless they are broken off."""
    left = iter(values)

    def evaluate(model: Any, batches: Any, **_: Any) -> dict[str, float]:
        next(iter(batches))
        return {"loss": 1.0, metric: next(left)}

    monkeypatch.setattr("forge.training.assemble.evaluate", evaluate)


@pytest.mark.parametrize(
    ("metric", "values", "kept"),
    [
        ("loss", [5.0, 3.0, 4.0, 3.5, 9.0, 9.0], [2, 4, 6]),
        ("loss", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 6]),
        ("token_accuracy", [0.1, 0.3, 0.2, 0.25, 0.0, 0.0], [2, 4, 6]),
        ("loss", [math.nan, 3.0, math.nan, 4.0, 5.0, math.nan], [2, 4, 6]),
        ("loss", [math.inf, math.nan, math.nan, math.nan, math.nan, 1.0], [6]),
    ],
)
def test_the_best_are_kept_beside_the_newest(
    trained: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    values: list[float],
    kept: list[int],
) -> None:
    evaluating(monkeypatch, metric, values)
    path = trained(*EVERY, f"eval.metric={metric}", f"run.objective=eval/{metric}")
    assert [one.step for one in saved.listed(path / "checkpoints")] == kept
    newest = saved.listed(path / "checkpoints")[-1].meta["metrics"][metric]
    assert newest == (values[-1] if math.isfinite(values[-1]) else None)


def test_a_best_one_is_saved_when_it_is_found(
    trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluating(monkeypatch, "loss", [5.0, 3.0, 4.0, 2.0, 9.0, 9.0])
    path = trained(*EVERY, "checkpoint.interval=100", "checkpoint.keep_best=1")
    assert reasons(path) == {4: "best", 6: "end"}


def test_a_best_one_whose_evaluation_was_broken_off_is_saved_when_the_run_goes_on(
    new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluating(monkeypatch, "loss", [5.0, 3.0, 2.0, 9.0, 9.0, 9.0])
    path = new_run(*EVERY, "checkpoint.interval=100", "checkpoint.keep_best=1")
    loop = assemble(path).loop
    loop.callbacks.insert(0, At(3, lambda loop: loop.interrupt("SIGTERM")))
    loop.run()
    assert reasons(path) == {2: "best", 3: "SIGTERM"}
    assert worker.main([str(path)]) == 0
    assert reasons(path) == {3: "best", 6: "end"}


def test_on_checkpoint_hears_of_each_when_it_is_complete(assembled: Callable[..., Parts]) -> None:
    for mode in ("disabled", "async"):
        parts = assembled(*OFTEN, f"checkpoint.async_mode={mode}")
        heard: list[str] = []

        class Hearing(LoopCallback):
            def on_checkpoint(self, loop: Any, path: Path) -> None:
                assert saved.Saved(path).fault() is None
                heard.append(path.name)  # noqa: B023

        parts.loop.callbacks.insert(0, Hearing())
        parts.loop.run()
        assert heard == ["step_2", "step_4", "step_5"]


def test_copies_are_made_during_the_next_step_and_before_it_changes_anything(
    assembled: Callable[..., Parts], trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of step 2 begins only once the forward pass of step 3 has begun, and takes a while;
    it is of step 2 all the same.
    """
    plain, parts = trained(*OFTEN), assembled(*OFTEN, "checkpoint.async_mode=async")
    update, forward, copy, late = parts.loop.update, threading.Event(), staging._copy, []
    objective = update.objective

    def third(model: Any, batch: Any) -> Any:
        if parts.loop.state.step == 2:
            forward.set()
        return objective(model, batch)

    def slow(*arguments: Any) -> Any:
        late.append(forward.wait(20))
        time.sleep(0.2)
        return copy(*arguments)

    update.objective = third
    monkeypatch.setattr(staging, "_copy", slow)
    parts.loop.run()
    assert late == [True] * 3
    for step in (2, 4, 5):
        assert_bit_equal(
            *(stored(run / "checkpoints" / f"step_{step}") for run in (parts.loop.run_dir, plain))
        )


def test_nothing_is_saved_when_it_is_off(
    trained: Callable[..., Path], assembled: Callable[..., Parts], capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor advised to go on from; what ends it early says so too."""
    run = trained("checkpoint=off", "metrics.enable_console=true", "checkpoint.interval=2")
    assert not (run / "checkpoints").exists()
    assert json.loads((run / "result.json").read_text())["status"] == "finished"
    assert "forge.generate" not in (said := capfd.readouterr().out)
    assert "forge.resume" not in said
    parts = assembled("checkpoint.enabled=false")
    parts.loop.callbacks.insert(0, At(3, lambda _: os.kill(os.getpid(), signal.SIGINT)))
    assert parts.loop.run() == "SIGINT"
    assert parts.loop.state.step == 3
    assert (
        "SIGINT: finishing this step, then ending; nothing is saved; once more ends at once"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("last", ["weights", "none"])
def test_the_last_save_may_be_less_but_one_that_was_interrupted_is_whole(
    assembled: Callable[..., Parts], trained: Callable[..., Path], last: str
) -> None:
    options = ("checkpoint.interval=4", "checkpoint.keep_last_n=0", f"checkpoint.last={last}")
    run = trained(*options)
    assert folders(run) == (["step_4", "step_6"] if last == "weights" else ["step_4"])
    if last == "weights":
        names = {name.partition("/")[0] for name in stored(run / "checkpoints" / "step_6")}
        assert names == {"model"}
        assert meta(run / "checkpoints" / "step_6")["weights_only"]
    parts = assembled(*options)
    parts.loop.callbacks.insert(0, At(5, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    parts.loop.run()
    assert "optimizer" in {
        name.partition("/")[0] for name in stored(parts.loop.run_dir / "checkpoints" / "step_5")
    }


def test_training_goes_on_from_a_whole_checkpoint_and_begins_with_any(
    trained: Callable[..., Path],
    assembled: Callable[..., Parts],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a run whose last checkpoint holds the weights alone."""
    run = trained("checkpoint.interval=4", "checkpoint.last=weights", "checkpoint.keep_last_n=0")
    (run / "result.json").unlink()
    alter(run, train__max_steps=8, run__allow_change=["scheduler"])
    alone = "it holds the weights alone (checkpoint.last=weights), which checkpoint.init_from takes"
    assert assemble(run).loop.state.step == 4
    assert f"step_6 is passed over: {alone}" in caplog.text
    with pytest.raises(
        saved.CheckpointError,
        match=re.escape(f"step_6 cannot be used: {alone}; take another checkpoint"),
    ):
        assembled(f"checkpoint.resume_from={run}/checkpoints/step_6")
    shutil.rmtree(run / "checkpoints" / "step_4")
    fix = f"begin a new run with its weights, checkpoint.init_from={run}"
    with pytest.raises(
        saved.CheckpointError,
        match=re.escape(f"has checkpoints and none can be used (step_6: {alone}); {fix}"),
    ):
        assemble(run)
    assert worker.main([str(run)]) == 2
    assert "goes on with" not in capsys.readouterr().err
    begun = assembled(f"checkpoint.init_from={run}")
    assert_bit_equal(
        stored(run / "checkpoints" / "step_6"),
        {f"model/{name}": value for name, value in weights(begun.model).items()},
    )


def test_a_run_that_saved_nothing_is_not_begun_anew_unasked(trained: Callable[..., Path]) -> None:
    run = trained("checkpoint=off")
    (run / "result.json").unlink()
    message = (
        "this run was at step 6; checkpoint.enabled=false saved none; "
        "give another run.dir to begin anew"
    )
    with pytest.raises(saved.CheckpointError, match=re.escape(message)):
        assemble(run)


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_the_final_evaluation_belongs_to_the_last_checkpoint(
    trained: Callable[..., Path], mode: str
) -> None:
    """Of six steps, evaluated every four; a better last one is the best, and stays when one is
    kept.
    """
    options = (
        "checkpoint.interval=4",
        "eval.enabled=true",
        "eval.interval=4",
        "eval.sample_prompts=[]",
        f"checkpoint.async_mode={mode}",
    )
    run = trained(*options, "checkpoint.keep_last_n=2", "checkpoint.keep_best=1")
    evaluated = {one.step: one.meta["metrics"]["loss"] for one in saved.listed(run / "checkpoints")}
    assert evaluated == logged(run, "eval/loss")
    assert set(evaluated) == {4, 6}
    assert evaluated[6] < evaluated[4]
    assert saved.find(run / "best")[0].step == 6
    assert [row["best"] for row in checkpoints.describe(run)] == [False, True]
    (run / "checkpoints" / "step_6" / "meta.json").unlink()
    assert saved.find(run / "checkpoints" / "best")[0].step == 4
