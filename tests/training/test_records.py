"""What a worker leaves behind about itself: result, error, attempts and log."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from going_on_helpers import alter
from run_helpers import assert_bit_equal, logged, stored

from forge import worker
from forge.rundir import outcome
from forge.rundir.lock import Lock
from forge.rundir.provenance import OURS, revision, versions
from forge.training import assemble as assembling
from forge.training import step as stepping
from forge.training.assemble import assemble

EVALUATE = ("eval.enabled=true", "eval.interval=4", "eval.steps=1", "eval.sample_tokens=0")


def strict(path: Path) -> Any:
    """JSON without NaN and infinities, which Python would read."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_the_result(trained: Callable[..., Path]) -> None:
    path = trained(*EVALUATE)
    result = strict(path / "result.json")
    assert list(result) == ["status", "reason", "step", "tokens", "config", "objective", "metrics"]
    assert [result[key] for key in ("status", "reason", "step", "tokens", "config")] == [
        "finished",
        "end",
        6,
        6 * 4 * 16,
        "config.yaml",
    ]
    metrics = result["metrics"]
    assert (metrics["train/loss"], metrics["eval/loss"]) == (
        logged(path, "train/loss")[6],
        logged(path, "eval/loss")[6],
    )
    assert (metrics["eval/step"], metrics["tokens"], metrics["skipped_steps"]) == (6, 384, 0)
    assert result["objective"] == {"name": "eval/loss", "value": metrics["eval/loss"]}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("run.objective=train/grad_norm",), "train/grad_norm"),
        ((*EVALUATE, "eval.metric=bits_per_byte"), "eval/bits_per_byte"),
        ((*EVALUATE, "run.objective=tokens_per_second"), "tokens_per_second"),
        ((), "train/loss"),
    ],
)
def test_the_objective_is_the_one_that_was_asked_for(
    trained: Callable[..., Path], options: tuple[str, ...], name: str
) -> None:
    path = trained(*options)
    result = strict(path / "result.json")
    assert result["objective"] == {"name": name, "value": result["metrics"][name]}
    done = outcome.read_result(path)
    assert done is not None
    assert done.objective == result["metrics"][name] > 0


def test_an_objective_that_was_never_logged(
    trained: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained("run.objective=train/los")
    assert strict(path / "result.json")["objective"] == {"name": "train/los", "value": None}
    logged_were = "train/loss, train/grad_norm, lr, tokens, skipped_steps, tokens_per_second"
    assert (
        capsys.readouterr().err
        == f"run.objective=train/los was never logged; logged were {logged_were}\n"
    )


def test_a_metric_that_is_not_finite_is_null(
    trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        assembling, "evaluate", lambda *_, **__: {"loss": math.nan, "perplexity": math.inf}
    )
    result = strict(trained(*EVALUATE) / "result.json")
    assert result["objective"] == {"name": "eval/loss", "value": None}
    assert (result["metrics"]["eval/loss"], result["metrics"]["eval/perplexity"]) == (None, None)


def test_every_start_and_every_end_is_a_line(new_run: Callable[..., Path]) -> None:
    """A start without an end was killed, and a line that was cut off is left out without spoiling
    the next.
    """
    path = new_run("checkpoint.interval=2")
    loop = assemble(path).loop
    loop.end_step = 2
    loop.run()
    with (path / "attempts.jsonl").open("a") as file:
        file.write('{"event": "st')
    alter(path, metrics__log_interval=2)
    assert worker.main([str(path)]) == 0
    first, second, last = outcome.attempts(path)
    for line, step, source, config in (
        (first, 0, "nothing", "config.yaml"),
        (second, 2, "checkpoints/step_2", "config.2.yaml"),
    ):
        assert (line["event"], line["step"], line["from"], line["config"], line["resume_from"]) == (
            "start",
            step,
            source,
            config,
            None,
        )
        assert (line["host"], line["pid"], line["versions"]) == (
            platform.node(),
            os.getpid(),
            versions(),
        )
        assert line["git_revision"] == revision(OURS)
    assert {key: last[key] for key in last if key != "time"} == {
        "event": "end",
        "status": "finished",
        "reason": "end",
        "step": 6,
    }
    assert outcome.resumed_from(path) is None
    alter(path, checkpoint__resume_from="2")
    assert worker.main([str(path)]) == 0
    assert outcome.resumed_from(path) == "2"


def test_a_finished_run_is_left_as_it_is(
    trained: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained()
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.name != "run.lock"}
    capsys.readouterr()
    assert worker.main([str(path)]) == 0
    longer = f"to go on: python -m forge.resume {path} train.max_steps=12"
    assert capsys.readouterr() == (
        f"this run is finished: all steps done, after 6 steps; {longer}\n",
        "",
    )
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.name != "run.lock"} == before


@pytest.mark.parametrize(
    "kept", ["checkpoint=off", "checkpoint.last=weights", "checkpoint.last=none"]
)
def test_a_run_without_a_checkpoint_to_go_on_from_is_not_advised_to(
    trained: Callable[..., Path], capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    path = trained(kept, "checkpoint.interval=0" if kept != "checkpoint=off" else "seed=1")
    capsys.readouterr()
    assert worker.main([str(path)]) == 0
    assert capsys.readouterr().out == (
        "this run is finished: all steps done, after 6 steps; no "
        "checkpoint of it is there to go on from\n"
    )


def test_a_run_in_use_is_refused(
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = new_run()
    monkeypatch.setitem(Lock.acquire.__kwdefaults__, "patience", 0.1)
    with Lock(path):
        assert worker.main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"{path} is in use by process {os.getpid()} on {platform.node()} since "
    )
    assert not (path / "logs").exists()


def test_the_log_holds_what_was_said_and_warned_of(
    saved_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (saved_run / "checkpoints" / "step_6" / "meta.json").unlink()
    (saved_run / "logs" / "rank_0.log").write_text("earlier\n")
    handlers, level = logging.getLogger().handlers[:], logging.getLogger("forge").level
    assert worker.main([str(saved_run)]) == 0
    assert logging.getLogger().handlers == handlers
    assert logging.getLogger("forge").level == level
    lines = (saved_run / "logs" / "rank_0.log").read_text().splitlines()
    assert lines[0] == "earlier", "a later start adds to it"
    shown = [line.split(" ", 2)[2] for line in lines[1:]]
    warned = (
        f"WARNING forge.training.restore: {saved_run}/checkpoints/step_6 is "
        f"passed over: it is torn: it has no meta.json"
    )
    assert any(line.startswith(warned) for line in shown)
    said = (
        "INFO forge.training.process: going on from checkpoints/step_4 at step "
        "4, where it stopped in the data: 2 steps to go"
    )
    assert said in shown
    assert "is passed over" not in capsys.readouterr().out


def test_a_run_that_diverges_fails_and_goes_on_under_other_options(
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the last good state, which was saved."""
    path = new_run("train.max_bad_steps=2", "checkpoint.interval=100")
    with monkeypatch.context() as patch:
        good = stepping.Update._accumulate

        def diverging(self: Any, step: Any) -> Any:
            loss, sums = good(self, step)
            return (loss if self.calls < 3 else loss * math.nan), sums

        def counted(self: Any, number: int) -> float:
            self.calls = number
            return set_lr(self, number)

        set_lr = stepping.Update._set_lr
        patch.setattr(stepping.Update, "_set_lr", counted)
        patch.setattr(stepping.Update, "_accumulate", diverging)
        assert worker.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert (
        "the loss was not finite in steps 4 to 5, which is train.max_bad_steps=2 or more in a row."
        in said
    )
    assert f"{path}/checkpoints/step_5 holds the weights as they were before them." in said
    assert "Traceback" not in said
    result, error = strict(path / "result.json"), strict(path / "error.json")
    assert (result["status"], result["reason"], result["step"]) == ("failed", "bad_steps", 5)
    assert (error["type"], error["rank"]) == ("RuntimeError", 0)
    assert error["message"] in said
    assert "NoneType" not in error["traceback"]
    end = outcome.attempts(path)[-1]
    assert (end["status"], end["step"]) == ("failed", 5)
    assert end["reason"].startswith("RuntimeError: the loss was not finite")
    assert outcome.finished(path) is None
    kept = stored(path / "checkpoints" / "step_5")
    whole = new_run("train.max_steps=3", "scheduler.decay_steps=4")
    assert worker.main([str(whole)]) == 0
    assert_bit_equal(kept, stored(whole / "checkpoints" / "step_3"))
    alter(path, optimizer__lr=0.001, run__allow_change=["optimizer.lr"])
    assert worker.main([str(path)]) == 0
    assert strict(path / "result.json")["status"] == "finished"
    assert logged(path, "skipped_steps")[6] == 2
    assert set(logged(path, "train/loss")) == set(range(1, 7))
