"""When a run saves, what it keeps, and with which other options it resumes from there."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.going_on_helpers import alter
from run_helpers import (
    assert_bit_equal,
    at_step,
    built,
    folders,
    logged,
    meta,
    read,
    step_of,
    stored,
    weights,
)

from forge import checkpoints, worker
from forge.objectives.pretrain import Pretrain
from forge.rundir import checkpoints as saved
from forge.training.callback import Callback
from forge.training.checkpoints import staging

OFTEN = "train.max_steps=5 checkpoint.interval=2 checkpoint.keep_last_n=0"
EVALUATED = "eval.enabled=true eval.interval=1 eval.sample_tokens=0 checkpoint.keep_last_n=1"


def reasons(run: Path) -> dict[int, str]:
    return {one.step: one.meta["reason"] for one in saved.list_checkpoints(run / "checkpoints")}


def test_minutes_count_from_the_last_save(assembled, monkeypatch):
    """30 s a step and one save a minute; the save of the interval, at 3, restarts the minute."""
    loop = assembled(
        "train.max_steps=9 checkpoint.interval=3 checkpoint.keep_last_n=0",
        "checkpoint.interval_minutes=1",
    )
    loop.end_step, clock = 7, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    at_step(loop, None, lambda _: clock.__setitem__(0, clock[0] + 30))
    loop.run()
    minute, interval = "interval_minutes", "interval"
    expected = {2: minute, 3: interval, 5: minute, 6: interval, 7: "end"}
    assert reasons(loop.run_dir) == expected


def evaluating(monkeypatch, metric: str, values: list[float]):
    """Evaluations that find these values, one after the other, unless they are broken off."""
    left = iter(values)

    def evaluate(model, objective, batches, **_):
        next(iter(batches))
        return {"loss": 1.0, metric: next(left)}

    monkeypatch.setattr("forge.training.callbacks.evaluation.evaluate", evaluate)


BEST = [
    ("loss", [5.0, 3.0, 4.0, 3.5, 9.0, 9.0], [2, 4, 6]),
    ("loss", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 6]),
    ("token_accuracy", [0.1, 0.3, 0.2, 0.25, 0.0, 0.0], [2, 4, 6]),
    ("loss", [math.nan, 3.0, math.nan, 4.0, 5.0, math.nan], [2, 4, 6]),
    ("loss", [math.inf, math.nan, math.nan, math.nan, math.nan, 1.0], [6]),
]


@pytest.mark.ci("loss-values0-kept0", "token_accuracy-values2-kept2")
@pytest.mark.parametrize(("metric", "values", "kept"), BEST)
def test_the_best_are_kept_beside_the_newest(trained, monkeypatch, metric, values, kept):
    evaluating(monkeypatch, metric, values)
    options = "checkpoint.interval=1 checkpoint.keep_best=2"
    path = trained(EVALUATED, options, f"eval.metric={metric} run.objective=eval/{metric}")
    found = saved.list_checkpoints(path / "checkpoints")
    assert [one.step for one in found] == kept
    newest = values[-1] if math.isfinite(values[-1]) else None
    assert found[-1].meta["metrics"][metric] == newest


def test_a_best_one_is_saved_when_it_is_found_or_the_run_goes_on(new_run, monkeypatch):
    """The evaluation of the third was broken off."""
    evaluating(monkeypatch, "loss", [5.0, 3.0, 2.0, 9.0, 9.0, 9.0])
    path = new_run(EVALUATED, "checkpoint.interval=100 checkpoint.keep_best=1")
    loop = built(path)
    at_step(loop, 3, lambda loop: loop.interrupt("SIGTERM"))
    loop.run()
    assert reasons(path) == {2: "best", 3: "SIGTERM"}
    assert worker.main([str(path)]) == 0
    assert reasons(path) == {3: "best", 6: "end"}


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_on_checkpoint_comes_for_each_when_it_is_complete(assembled, mode):
    loop, seen = assembled(OFTEN, f"checkpoint.async_mode={mode}"), []

    class Seeing(Callback):
        def on_checkpoint(self, loop, path):
            assert saved.Saved(path).fault() is None
            seen.append(path.name)

    loop.callbacks.insert(0, Seeing())
    loop.run()
    assert seen == ["step_2", "step_4", "step_5"]


def test_copies_are_made_during_the_next_step_and_before_it_changes_anything(
    assembled, trained, monkeypatch
):
    """The copy of step 2 begins only once the forward pass of step 3 has begun, and takes a while;
    it is of step 2 all the same.
    """
    plain, loop = trained(OFTEN), assembled(OFTEN, "checkpoint.async_mode=async")
    forward, copy, late = threading.Event(), staging._copy, []
    read = Pretrain.__call__

    def third(objective, model, batch):
        if loop.state.step == 2:
            forward.set()
        return read(objective, model, batch)

    def slow(*arguments):
        late.append(forward.wait(20))
        time.sleep(0.2)
        return copy(*arguments)

    monkeypatch.setattr(Pretrain, "__call__", third)
    monkeypatch.setattr(staging, "_copy", slow)
    loop.run()
    assert late == [True] * 3
    for step in (2, 4, 5):
        assert_bit_equal(*(stored(step_of(run, step)) for run in (loop.run_dir, plain)))


def test_nothing_is_saved_when_it_is_off(trained, assembled, capfd):
    """Nor advised to resume from, nor begun again unasked; what ends it early says so too."""
    run = trained("checkpoint=off metrics.enable_console=true checkpoint.interval=2")
    assert not (run / "checkpoints").exists()
    assert read(run / "result.json")["status"] == "finished"
    said = capfd.readouterr().out
    assert "forge.generate" not in said
    assert "forge.resume" not in said
    (run / "result.json").unlink()
    what = "this run was at step 6; checkpoint.enabled=false saved none"
    with pytest.raises(saved.CheckpointError, match=f"{what}; give another run.dir to begin again"):
        built(run)
    loop = assembled("checkpoint.enabled=false")
    at_step(loop, 3, lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert loop.run() == "SIGINT"
    assert loop.state.step == 3
    said = "SIGINT: finishing this step, then ending; nothing is saved; once more ends at once"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("last", ["weights", "none"])
def test_the_last_save_may_be_less_but_one_that_was_interrupted_is_complete(
    assembled, trained, last
):
    options = f"checkpoint.interval=4 checkpoint.keep_last_n=0 checkpoint.last={last}"
    run = trained(options)
    assert folders(run) == (["step_4", "step_6"] if last == "weights" else ["step_4"])
    if last == "weights":
        assert {name.partition("/")[0] for name in stored(step_of(run, 6))} == {"model"}
        assert meta(step_of(run, 6))["weights_only"]
    loop = assembled(options)
    at_step(loop, 5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    loop.run()
    assert stored(step_of(loop.run_dir, 5), "optimizer/")


def test_training_goes_on_from_a_complete_checkpoint_and_begins_with_any(
    trained, assembled, caplog, capsys
):
    """Of a run whose last checkpoint holds the weights alone."""
    run = trained("checkpoint.interval=4 checkpoint.last=weights checkpoint.keep_last_n=0")
    (run / "result.json").unlink()
    alter(run, train__max_steps=8, run__allow_change=["scheduler"])
    alone = "it holds the weights alone (checkpoint.last=weights), which checkpoint.init_from takes"
    assert built(run).state.step == 4
    assert f"step_6 is skipped: {alone}" in caplog.text
    said = re.escape(f"step_6 cannot be used: {alone}; take another checkpoint")
    with pytest.raises(saved.CheckpointError, match=said):
        assembled(f"checkpoint.resume_from={run}/checkpoints/step_6")
    shutil.rmtree(step_of(run, 4))
    assert worker.main([str(run)]) == 2
    said = capsys.readouterr().err
    fix = f"begin a new run with its weights, checkpoint.init_from={run}"
    assert f"has checkpoints and none can be used (step_6: {alone}); {fix}" in said
    assert "resume with" not in said
    begun = weights(assembled(f"checkpoint.init_from={run}").model)
    assert_bit_equal(stored(step_of(run, 6), "model/"), begun)


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_the_final_evaluation_belongs_to_the_last_checkpoint(trained, mode):
    """Of six steps, evaluated every four; a better last one is the best, and stays when one is
    kept.
    """
    run = trained(
        "checkpoint.interval=4 eval.enabled=true eval.interval=4 eval.sample_prompts=[]",
        f"checkpoint.async_mode={mode} checkpoint.keep_last_n=2 checkpoint.keep_best=1",
    )
    evaluated = {
        one.step: one.meta["metrics"]["loss"] for one in saved.list_checkpoints(run / "checkpoints")
    }
    assert evaluated == logged(run, "eval/loss")
    assert set(evaluated) == {4, 6}
    assert evaluated[6] < evaluated[4]
    assert saved.find_checkpoint(run / "best")[0].step == 6
    assert [row["best"] for row in checkpoints.describe_checkpoints(run)] == [False, True]
    (step_of(run, 6) / "meta.json").unlink()
    assert saved.find_checkpoint(run / "checkpoints" / "best")[0].step == 4
