"""When a run ends: steps, epochs, time, a target, no improvement."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from run_helpers import built, logged, read, step_of

from forge.config.eval import Eval
from forge.config.train import Train
from forge.rundir import saved_config
from forge.training.callbacks.signals import Signals
from forge.training.callbacks.stopping import EarlyStopping, TimeLimit

SCHEDULES = ["", "scheduler=wsd scheduler.warmup_steps=2", "scheduler.decay_steps=77"]


@pytest.mark.parametrize("options", SCHEDULES)
def test_max_epochs_becomes_steps_and_the_schedule_follows(new_run, options):
    path = new_run("train.max_steps=10000 train.max_epochs=0.05", options)
    loop = built(path)
    steps = math.ceil(0.05 * ((len(loop.session.prepared.train.stores[""]) - 1) // 16) / 4)
    assert 5 < steps < 100
    schedule = loop.config.scheduler
    if "wsd" in options:
        assert schedule.decay_steps == round(0.2 * steps)
        assert schedule.stable_steps == steps - 2 - schedule.decay_steps
    else:
        assert schedule.decay_steps == (77 if options else steps - 2)
    assert loop.config.train.max_steps == steps
    asked = saved_config.load_config(path / "config.yaml", trust=())
    assert asked.train.max_steps == 10000
    derived = {one["key"]: one["value"] for one in read(path / "derived.json")}
    assert derived["train.max_steps"] == steps
    assert derived.get("scheduler.decay_steps", 77) == schedule.decay_steps
    loop.run()
    rates = logged(path, "lr")
    assert max(rates) == steps
    assert options or rates[steps] == pytest.approx(0.1 * 0.01), "the floor, at the last step"


def session_of(**sections) -> Any:
    """What a callback asks of a session."""
    return SimpleNamespace(config=SimpleNamespace(**sections))


def loop_at(step: int, **more) -> Any:
    """What a callback asks of a loop."""
    loop = SimpleNamespace(state=SimpleNamespace(step=step), reason=None, **more)
    loop.end = lambda reason: setattr(loop, "reason", loop.reason or reason)
    return loop


def test_time_of_the_resumed_run_counts():
    limit, loop = TimeLimit(session_of(train=Train(max_time=1.0))), loop_at(10)
    for seconds, requested in ((59.9, 0), (60.0, 1)):
        loop.clock = SimpleNamespace(total=lambda seconds=seconds: seconds)
        assert limit.requested(loop) == requested
    limit.act(loop, 1)
    assert loop.reason == "max_time"


def test_a_checkpoint_keeps_the_time_that_was_trained(trained, new_run):
    """Over two starts it adds up, and a run without a limit keeps it too."""
    first = step_of(trained("train.max_steps=3"), 3)
    used = read(first / "meta.json")["seconds"]
    assert 0 < used < 30
    path = new_run(f"train.max_steps=6 checkpoint.resume_from={first}")
    loop = built(path)
    assert loop.clock.before == used
    loop.run()
    total = read(step_of(path, 6) / "meta.json")["seconds"]
    assert used < total <= loop.clock.total()


ACCURACY = {"metric": "token_accuracy"}
# Evaluations, options, and the number of the one that stops the run and why.
EARLY = [
    ([3.0, 2.0, 1.9], {"target": 2.0}, (2, "target")),
    ([3.0, 2.01], {"target": 2.0}, None),
    ([0.1, 0.5, 0.6], {"target": 0.5, **ACCURACY}, (2, "target")),
    ([0.1, 0.49], {"target": 0.5, **ACCURACY}, None),
    ([3.0, 2.0, 2.1, 2.0, 1.0], {"patience": 2}, (4, "patience")),
    ([3.0, 2.0, 2.1, 1.9, 2.0, 1.8], {"patience": 2}, None),
    ([0.3, 0.4, 0.4, 0.3], {"patience": 2, **ACCURACY}, (4, "patience")),
    ([0.3, 0.2, 0.4, 0.3, 0.5], {"patience": 2, **ACCURACY}, None),
    ([1.0, 2.0, 3.0, 4.0], {"patience": 0}, None),
    ([3.0, 2.95, 2.91], {"patience": 2, "min_delta": 0.1}, (3, "patience")),
    ([3.0, 2.95, 2.85, 2.8], {"patience": 2, "min_delta": 0.1}, None),
    ([3.0, math.nan, math.nan], {"patience": 2}, (3, "patience")),
    ([math.nan, 3.0, 3.1, 3.1], {"patience": 2}, (4, "patience")),
]


@pytest.mark.parametrize(("values", "options", "expected"), EARLY)
def test_target_and_patience(values, options, expected):
    callback, loop = EarlyStopping(session_of(eval=Eval(interval=10, **options))), loop_at(0)
    found = None
    for number, value in enumerate(values, start=1):
        loop.state.step = 10 * number
        callback.on_evaluation(loop, {"loss": value, "token_accuracy": value})
        found = found or (loop.reason and (number, loop.reason))
    assert found == expected


def test_the_evaluation_of_the_end_is_no_part_of_patience():
    callback = EarlyStopping(session_of(eval=Eval(interval=10, patience=2)))
    callback.on_evaluation(loop_at(10), {"loss": 2.0})
    callback.on_evaluation(loop_at(17), {"loss": 1.0})
    assert callback.state_dict() == {"best": 2.0, "waited": 0}


def test_target_and_patience_end_a_real_run(trained):
    evaluate = "eval.enabled=true eval.interval=2 eval.steps=2 eval.sample_tokens=0"
    path = trained(evaluate, "eval.target=5.6 train.max_steps=40")
    losses, result = logged(path, "eval/loss"), read(path / "result.json")
    assert (result["reason"], result["step"]) == ("target", max(losses))
    assert [step for step, loss in losses.items() if loss <= 5.6] == [result["step"]]
    path = trained(evaluate, "eval.patience=2 eval.min_delta=100 train.max_steps=40")
    result = read(path / "result.json")
    assert (result["reason"], result["step"]) == ("patience", 6)
    assert step_of(path, 6).is_dir()


def test_the_thread_that_reads_signals_ends_with_the_run(assembled, monkeypatch):
    """Else it could free the process groups while Python ends, which aborts: "terminate called
    without an active exception".
    """
    watch = Signals._watch

    def slowly(signals, reader):
        watch(signals, reader)
        time.sleep(0.3)

    monkeypatch.setattr(Signals, "_watch", slowly)
    before = threading.enumerate()
    assembled("train.max_steps=1").run()
    assert threading.enumerate() == before
