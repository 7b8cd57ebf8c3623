"""The contract of callbacks: which moments there are, in which order, what a callback is given, how
its state is kept, and how a broken one is named.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import types

import pytest
import torch
from run_helpers import assert_bit_equal, built, read, weights

from forge import worker
from forge.config.problems import ConfigError
from forge.rundir.files import read_rows
from forge.training.callback import Callback as Base
from forge.training.callback import CallbackError
from forge.training.checkpoints.callback_state import callback_states, load_states, split_tensors

MOMENTS = "on_start on_step_start on_gradients on_step_end on_evaluation on_checkpoint on_end close"
EVALUATED = "train.max_steps=2 eval.enabled=true eval.interval=2 eval.steps=1 checkpoint.interval=2"


class Everything(Base):
    """Writes down every moment with the step."""

    def __init__(self):
        self.seen, self.step = [], 0


def _noting(moment: str):
    def note(self, *arguments):
        self.step = arguments[0].state.step if arguments else self.step
        self.seen.append((moment, self.step))

    return note


for _moment in MOMENTS.split():
    setattr(Everything, _moment, _noting(_moment))


class Broken(Base):
    """Fails at one moment, at its second step where it has steps."""

    def __init__(self, moment: str):
        self.moment = moment
        if moment == "__init__":
            raise ValueError("no good")
        if moment != "load_state_dict":
            setattr(self, moment, self._fail)

    def _fail(self, *arguments):
        each_step = self.moment in ("on_step_start", "on_gradients", "on_step_end")
        if not each_step or arguments[0].state.step == 1:
            raise ValueError("no good")

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        raise KeyError("lost")


class Norms(Base):
    """Logs the norm of the gradient."""

    def on_gradients(self, loop):
        assert (loop.model, loop.optimizer) == (loop.update.model, loop.update.optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in loop.model.parameters()])
        loop.log({"mine/norm": norm, "mine/steps": loop.config.train.max_steps})


class Zeroing(Base):
    def on_gradients(self, loop):
        for parameter in loop.model.parameters():
            parameter.grad.zero_()


class Sized(Base):
    """Wants a model, and is told of by result.json."""

    def __init__(self, session, factor: int = 1):
        self.size = factor * sum(p.numel() for p in session.model.parameters())
        self.rest = (session.config.seed, session.tokenizer.vocab_size, session.ranks.size)

    @classmethod
    def wanted(cls, session):
        return session.config.seed != 7

    def results(self):
        return {"mine/size": self.size}


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    """The package mypkg, with the classes of this file."""
    package = types.ModuleType("mypkg")
    for one in (Everything, Broken, Norms, Zeroing, Sized):
        setattr(package, one.__name__, one)
    monkeypatch.setitem(sys.modules, "mypkg", package)


def callback(target: str, moment: str = "") -> str:
    """The overrides that add one."""
    more = f" +callbacks.{target}.moment={moment}" if moment else ""
    return f"run.trust=[mypkg.] +callbacks.{target}._target_=mypkg.{target}{more}"


def test_the_order_of_all_moments(assembled):
    loop = assembled(callback("Everything"), EVALUATED)
    loop.run()
    (one,) = (c for c in loop.callbacks if isinstance(c, Everything))
    expected = "on_start 0, on_step_start 0, on_gradients 0, on_step_end 1, on_step_start 1, "
    expected += "on_gradients 1, on_evaluation 2, on_step_end 2, on_checkpoint 2, on_end 2, close 2"
    assert ", ".join(f"{moment} {step}" for moment, step in one.seen) == expected


def test_the_gradient_is_clipped_when_it_is_shown_and_metrics_go_to_the_trackers(trained):
    path = trained(callback("Norms"), "train.grad_clip_norm=0.01 train.max_steps=3")
    mine = [row for row in read_rows(path / "metrics.jsonl") if "mine/norm" in row]
    assert [row["step"] for row in mine] == [0, 1, 2]
    assert all(math.isclose(row["mine/norm"], 0.01, rel_tol=1e-3) for row in mine)
    assert {row["mine/steps"] for row in mine} == {3.0}


def test_what_is_changed_in_the_gradient_is_what_the_optimizer_uses(assembled):
    loop = assembled(callback("Zeroing"), "optimizer.weight_decay=0")
    before = weights(loop.model)
    loop.run()
    assert_bit_equal(weights(loop.model), before)


def test_one_that_names_a_session_gets_it_where_it_is_wanted(trained, assembled):
    asked = "run.trust=[mypkg.] +callbacks.a={_target_:mypkg.Sized,factor:2}"
    path = trained(asked, "train.max_steps=1")
    size = sum(value.numel() for value in weights(assembled().model).values())
    assert read(path / "result.json")["metrics"]["mine/size"] == 2 * size
    assert not [one for one in assembled(asked, "seed=7").callbacks if isinstance(one, Sized)]
    with pytest.raises(ConfigError, match="session is given by forge"):
        assembled("run.trust=[mypkg.] +callbacks.a={_target_:mypkg.Sized,session:2}")


def test_forges_own_are_taken_out_or_replaced_in_their_place(assembled, trained):
    names = [type(one).__name__ for one in assembled(EVALUATED).callbacks]
    own = ["Evaluation", "EarlyStopping", "Samples"]
    assert names == [
        "StepSigns",
        "Signals",
        "Garbage",
        "Agreement",
        "BadSteps",
        "Logger",
        *own,
        "Saving",
    ]
    mine = "run.trust=[mypkg.] callbacks.early_stopping._target_=mypkg.Everything"
    replaced = assembled(EVALUATED, mine, "~callbacks.samples").callbacks
    own = ["Evaluation", "Everything"]
    assert [type(one).__name__ for one in replaced[6:]] == [*own, "Saving"]
    path = trained(EVALUATED, "~callbacks.evaluation")
    assert not [row for row in read_rows(path / "metrics.jsonl") if "eval/loss" in row]


STEPS = dict(zip([*MOMENTS.split(), "state_dict"], [0, 1, 1, 1, 2, 2, 2, 2, 2], strict=True))


@pytest.mark.ci("on_start-0", "on_step_end-1", "state_dict-2")
@pytest.mark.parametrize(("moment", "step"), STEPS.items())
def test_a_broken_callback_names_itself(moment, step, new_run, capsys):
    path = new_run(callback("Broken", moment), EVALUATED)
    assert worker.main([str(path), "mypkg."]) == 1
    shown = capsys.readouterr().err
    said = f"callbacks.Broken ({Broken.__module__}.Broken) failed in {moment} at step {step}"
    said += ": ValueError: no good"
    assert shown.strip().splitlines()[0] == said
    assert "Traceback" not in shown
    error = read(path / "error.json")
    assert (error["type"], error["message"]) == ("CallbackError", said)
    assert "in _fail" in error["traceback"]


@pytest.mark.nightly
def test_one_that_cannot_be_made_or_take_its_state_back_names_itself(new_run, trained):
    said = r"^callbacks\.Broken \(mypkg\.Broken\) failed in __init__: ValueError: no good$"
    with pytest.raises(CallbackError, match=said):
        built(new_run(callback("Broken", "__init__")))
    mute = callback("Broken", "load_state_dict")
    again = new_run(mute, f"checkpoint.resume_from={trained(mute, 'train.max_steps=2')}")
    said = r"callbacks\.Broken \(.*Broken\) failed in load_state_dict at step 2: KeyError: 'lost'"
    with pytest.raises(CallbackError, match=said):
        built(again)


def test_a_close_that_fails_hides_no_error_and_stops_no_other(assembled, caplog):
    loop = assembled(callback("Broken", "close"), callback("Everything"), "train.max_steps=2")
    loop.callbacks[0].on_step_end = lambda *_: [].pop()
    with caplog.at_level(logging.WARNING), pytest.raises(IndexError, match="pop from empty list"):
        loop.run()
    (one,) = (c for c in loop.callbacks if isinstance(c, Everything))
    assert one.seen[-1][0] == "close"
    assert "callbacks.Broken failed in close too: CallbackError: callbacks.B" in caplog.text


# State

STATE = {
    "mean": {
        "blocks.0/w~x": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(1.5, dtype=torch.bfloat16),
    },
    "mean/blocks.0": torch.tensor([True]),
    "counts": [1, torch.zeros(0), {"deep": (2, "x", (None, torch.ones(1, dtype=torch.int64)))}],
    "plain": {"inf": float("inf"), "text": "ü", "no": False, "empty": {}, "list": []},
}


def same(a, b) -> bool:
    """Equal in types, structure and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


REFUSED = [
    ({"a": [1, {"b": {1}}]}, "its state at 'a/1/b' is a builtins.set; a checkpoint keeps tensors"),
    ({"a": {1: 2}}, "its state at 'a' has the key 1; keys are texts other than _tensor_ and _tupl"),
    ({"_tensor_": 3}, "its state has the key '_tensor_'; keys are texts"),
    ([1], "state_dict gives a dict, not list"),
]


@pytest.mark.parametrize(("state", "said"), REFUSED)
def test_what_cannot_be_kept_is_named(state, said):
    with pytest.raises(TypeError) as raised:
        split_tensors(state)
    assert said in str(raised.value)


class Holding(Base):
    def __init__(self, state, config_path=""):
        self.state, self.config_path = state, config_path

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_each_callback_gets_its_own_back_through_json_as_it_was():
    places = ["", "callbacks.a", "callbacks.a/b", "callbacks.c"]
    values = [{"n": 1}, STATE, {"w": torch.ones(2)}, {}]
    held = [Holding(*pair) for pair in zip(values, places, strict=True)]
    plain, tensors = callback_states(held, 7)
    assert set(plain) == {"Holding", "callbacks.a", "callbacks.a/b"}
    assert {"callbacks.a/mean/blocks.0~1w~0x", "callbacks.a/mean~1blocks.0"} < set(tensors)
    fresh = [Holding("kept", place) for place in places]
    load_states(fresh, json.loads(json.dumps(plain)), tensors, 7)
    assert all(same(new.state, old.state) for new, old in zip(fresh[:3], held[:3], strict=True))
    assert fresh[3].state == "kept"
