"""The contract of callbacks: which moments there are, in which order, what a callback is given, and
how a broken one is named.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import assert_bit_equal, weights

from forge import worker
from forge.training.assemble import Parts, assemble
from forge.training.callback import Callback as Base
from forge.training.callback import CallbackError

MOMENTS = (
    "on_start",
    "on_step_start",
    "on_gradients",
    "on_step_end",
    "on_evaluation",
    "on_checkpoint",
    "on_end",
    "close",
)
TRUST = "run.trust=[mypkg.]"


class Everything(Base):
    """Writes down every moment with the step."""

    seen: list[tuple[str, int]]

    def __init__(self) -> None:
        self.seen, self.step = [], 0


def _noting(moment: str) -> Callable[..., None]:
    def note(self: Everything, *arguments: Any) -> None:
        self.step = arguments[0].state.step if arguments else self.step
        self.seen.append((moment, self.step))

    return note


for _moment in MOMENTS:
    setattr(Everything, _moment, _noting(_moment))


class Broken(Base):
    """Fails at one moment, at its second step where it has steps."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        if moment == "__init__":
            raise ValueError("no good")
        if moment != "load_state_dict":
            setattr(self, moment, self._fail)

    def _fail(self, *arguments: Any) -> None:
        loop = arguments[0] if arguments else None
        if (
            loop is None
            or self.moment not in ("on_step_start", "on_gradients", "on_step_end")
            or loop.state.step == 1
        ):
            raise ValueError("no good")

    def state_dict(self) -> dict[str, Any]:
        return {"a": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("lost")


class GradientNoter(Base):
    """Doubles the gradient, so that SGD-like changes show, and logs."""

    def on_gradients(self, loop: Any) -> None:
        assert loop.model is loop.update.model
        assert loop.optimizer is loop.update.optimizer
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in loop.model.parameters() if p.grad is not None]
        )
        loop.log({"mine/norm": norm, "mine/steps": loop.config.train.max_steps})


class Zeroing(Base):
    def on_gradients(self, loop: Any) -> None:
        for parameter in loop.model.parameters():
            parameter.grad.zero_()


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package mypkg, with the classes of this file."""
    package = types.ModuleType("mypkg")
    for one in (Everything, Broken, GradientNoter, Zeroing):
        setattr(package, one.__name__, one)
    monkeypatch.setitem(sys.modules, "mypkg", package)


def callback(name: str, target: str, **keywords: Any) -> list[str]:
    """The overrides that add one."""
    return [
        TRUST,
        f"+callbacks.{name}._target_=mypkg.{target}",
        *(f"+callbacks.{name}.{key}={value}" for key, value in keywords.items()),
    ]


def test_the_order_of_all_moments(assembled: Callable[..., Parts]) -> None:
    evaluated = [
        "eval.enabled=true",
        "eval.interval=2",
        "eval.steps=1",
        "checkpoint.interval=2",
        "train.max_steps=2",
    ]
    parts = assembled(*callback("all", "Everything"), *evaluated)
    parts.loop.run()
    (one,) = (c for c in parts.loop.callbacks if isinstance(c, Everything))
    steps = [
        ("on_step_start", 0),
        ("on_gradients", 0),
        ("on_step_end", 1),
        ("on_step_start", 1),
        ("on_gradients", 1),
    ]
    end = [
        ("on_evaluation", 2),
        ("on_step_end", 2),
        ("on_checkpoint", 2),
        ("on_end", 2),
        ("close", 2),
    ]
    assert one.seen == [("on_start", 0), *steps, *end]


def test_the_gradient_is_clipped_when_it_is_shown_and_metrics_go_to_the_trackers(
    trained: Callable[..., Path],
) -> None:
    path = trained(
        *callback("noter", "GradientNoter"), "train.grad_clip_norm=0.01", "train.max_steps=3"
    )
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    mine = [row for row in rows if "mine/norm" in row]
    assert [row["step"] for row in mine] == [0, 1, 2]
    assert all(
        math.isclose(row["mine/norm"], 0.01, rel_tol=1e-3) and row["mine/steps"] == 3.0
        for row in mine
    )


def test_what_is_changed_in_the_gradient_is_what_the_optimizer_uses(
    assembled: Callable[..., Parts],
) -> None:
    parts = assembled(*callback("zero", "Zeroing"), "optimizer.weight_decay=0")
    before = {name: value.clone() for name, value in weights(parts.model).items()}
    parts.loop.run()
    assert_bit_equal(weights(parts.model), before)


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        *(
            ("on_start", 0),
            ("on_step_start", 1),
            ("on_gradients", 1),
            ("on_step_end", 1),
            ("on_evaluation", 2),
        ),
        *(("on_checkpoint", 2), ("on_end", 2), ("close", 2), ("state_dict", 2)),
    ],
)
def test_a_broken_callback_names_itself(
    moment: str, step: int, new_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "train.max_steps=2",
        "eval.enabled=true",
        "eval.interval=2",
        "eval.steps=1",
        "checkpoint.interval=2",
    ]
    path = new_run(*callback("bad", "Broken", moment=moment), *options)
    assert worker.main([str(path), "mypkg."]) == 1
    shown = capsys.readouterr().err
    said = (
        f"callbacks.bad ({Broken.__module__}.Broken) failed in {moment} at "
        f"step {step}: ValueError: no good"
    )
    assert shown.strip().splitlines()[0] == said
    assert "Traceback" not in shown
    error = json.loads((path / "error.json").read_text())
    assert (error["type"], error["message"]) == ("CallbackError", said)
    assert "ValueError: no good" in error["traceback"]
    assert "in _fail" in error["traceback"]


def test_one_that_cannot_be_made_names_itself(new_run: Callable[..., Path]) -> None:
    path = new_run(*callback("bad", "Broken", moment="__init__"))
    with pytest.raises(
        CallbackError,
        match=r"^callbacks\.bad \(mypkg\.Broken\) failed in __init__: ValueError: no good$",
    ) as raised:
        assemble(path)
    assert isinstance(raised.value.__cause__, ValueError)


def test_one_that_cannot_take_its_state_back_names_itself(
    trained: Callable[..., Path], new_run: Callable[..., Path]
) -> None:
    first = trained(*callback("bad", "Broken", moment="load_state_dict"), "train.max_steps=2")
    again = new_run(
        *callback("bad", "Broken", moment="load_state_dict"), f"checkpoint.resume_from={first}"
    )
    with pytest.raises(
        CallbackError,
        match=r"callbacks\.bad \(.*Broken\) failed in load_state_dict at step 2: KeyError: 'lost'",
    ):
        assemble(again)


def test_a_close_that_fails_hides_no_error_and_stops_no_other(
    assembled: Callable[..., Parts], caplog: pytest.LogCaptureFixture
) -> None:
    parts = assembled(
        *callback("bad", "Broken", moment="close"),
        *callback("all", "Everything"),
        "train.max_steps=2",
    )
    parts.loop.callbacks[0].on_step_end = lambda *_: [].pop()  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING), pytest.raises(IndexError, match="pop from empty list"):
        parts.loop.run()
    (one,) = (c for c in parts.loop.callbacks if isinstance(c, Everything))
    assert one.seen[-1][0] == "close"
    assert "callbacks.bad could not be closed either: CallbackError: callbacks.bad" in caplog.text
