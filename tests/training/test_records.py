"""What a worker leaves behind about itself: result, error, attempts and log."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
from pathlib import Path

import pytest
from helpers.going_on_helpers import alter
from run_helpers import assert_bit_equal, built, logged, step_of, stored
from test_guard import Poisoned

from forge import worker
from forge.rundir import outcome
from forge.rundir.lock import Lock
from forge.rundir.provenance import OURS, revision, versions
from forge.training import models
from forge.training.callbacks import evaluation

EVALUATE = "eval.enabled=true eval.interval=4 eval.steps=1 eval.sample_tokens=0"


def strict(path: Path):
    """JSON without NaN and infinities, which Python would read."""

    def refuse(name: str):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_the_result(trained):
    path = trained(EVALUATE)
    result = strict(path / "result.json")
    metrics, spent = result.pop("metrics"), result.pop("goodput")
    assert sum(spent["seconds"].values()) == pytest.approx(spent["wall_seconds"], abs=0.01)
    assert (spent["lost_steps"], spent["starts"]) == (0, 1)
    assert result == {
        "status": "finished",
        "reason": "end",
        "step": 6,
        "tokens": 6 * 4 * 16,
        "config": "config.yaml",
        "objective": {"name": "eval/loss", "value": metrics["eval/loss"]},
        "higher_is_better": ["token_accuracy"],
    }
    for name in ("train/loss", "eval/loss", "tokens", "skipped_steps"):
        assert metrics[name] == logged(path, name)[6]
    assert metrics["eval/step"] == 6


OBJECTIVES = [
    ("run.objective=train/grad_norm", "train/grad_norm"),
    (f"{EVALUATE} eval.metric=bits_per_byte", "eval/bits_per_byte"),
    (f"{EVALUATE} run.objective=tokens_per_second", "tokens_per_second"),
    ("", "train/loss"),
]


@pytest.mark.parametrize(("options", "name"), OBJECTIVES)
def test_the_objective_is_the_one_that_was_asked_for(trained, options, name):
    path = trained(options)
    result = strict(path / "result.json")
    assert result["objective"] == {"name": name, "value": result["metrics"][name]}
    assert outcome.read_result(path).objective == result["metrics"][name] > 0


def test_an_objective_that_was_never_logged(trained, capsys):
    path = trained("run.objective=train/los")
    assert strict(path / "result.json")["objective"] == {"name": "train/los", "value": None}
    names = "train/loss, train/grad_norm, lr, tokens, skipped_steps, tokens_per_second"
    said = f"run.objective=train/los was never logged; logged were {names}\n"
    assert capsys.readouterr().err == said


def test_a_metric_that_is_not_finite_is_null(trained, monkeypatch):
    found = {"loss": math.nan, "perplexity": math.inf}
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: found)
    result = strict(trained(EVALUATE) / "result.json")
    assert result["objective"] == {"name": "eval/loss", "value": None}
    assert (result["metrics"]["eval/loss"], result["metrics"]["eval/perplexity"]) == (None, None)


def test_every_start_and_every_end_is_a_line(new_run):
    """A start without an end was killed, and a line that was cut off is left out without spoiling
    the next.
    """
    path = new_run("checkpoint.interval=2")
    loop = built(path)
    loop.end_step = 2
    loop.run()
    with (path / "attempts.jsonl").open("a") as file:
        file.write('{"event": "st')
    alter(path, metrics__log_interval=2)
    assert worker.main([str(path)]) == 0
    rows = outcome.attempts(path)
    assert all(row.pop("time") for row in rows)
    start = {
        "event": "start",
        "step": 0,
        "from": "nothing",
        "config": "config.yaml",
        "resume_from": None,
        "host": platform.node(),
        "pid": os.getpid(),
        "versions": versions(),
        "git_revision": revision(OURS),
    }
    again = {"step": 2, "from": "checkpoints/step_2", "config": "config.2.yaml"}
    end = {"event": "end", "status": "finished", "reason": "end", "step": 6}
    assert rows == [start, start | again, end]
    assert outcome.resumed_from(path) is None
    alter(path, checkpoint__resume_from="2")
    assert worker.main([str(path)]) == 0
    assert outcome.resumed_from(path) == "2"


def test_a_finished_run_is_left_as_it_is(trained, capsys):
    path = trained()

    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.name != "run.lock"}

    before = times()
    capsys.readouterr()
    assert worker.main([str(path)]) == 0
    longer = f"to continue: python -m forge.resume {path} train.max_steps=12"
    said = f"this run is finished: all steps done, after 6 steps; {longer}\n"
    assert capsys.readouterr() == (said, "")
    assert times() == before


@pytest.mark.parametrize("kept", ["enabled=false", "last=weights", "last=none"])
def test_a_run_without_a_checkpoint_to_go_on_from_is_not_advised_to(trained, capsys, kept):
    path = trained(f"checkpoint.{kept}")
    capsys.readouterr()
    assert worker.main([str(path)]) == 0
    said = "after 6 steps; no checkpoint of it is there to resume from\n"
    assert capsys.readouterr().out == f"this run is finished: all steps done, {said}"


def test_a_run_in_use_is_refused(new_run, monkeypatch, capsys):
    path = new_run()
    monkeypatch.setitem(Lock.acquire.__kwdefaults__, "patience", 0.1)
    with Lock(path):
        assert worker.main([str(path)]) == 2
    said = f"{path} is in use by process {os.getpid()} on {platform.node()} since "
    assert capsys.readouterr().err.startswith(said)
    assert not (path / "logs").exists()


def test_the_log_holds_what_was_said_and_warned_of(saved_run, capsys):
    (step_of(saved_run, 6) / "meta.json").unlink()
    log = saved_run / "logs" / "rank_0.log"
    log.write_text("earlier\n")
    handlers, level = logging.getLogger().handlers[:], logging.getLogger("forge").level
    assert worker.main([str(saved_run)]) == 0
    assert (logging.getLogger().handlers, logging.getLogger("forge").level) == (handlers, level)
    first, *lines = log.read_text().splitlines()
    assert first == "earlier", "a later start adds to it"
    shown = "\n".join(line.split(" ", 2)[2] for line in lines)
    fault = "step_6 is skipped: it is torn: it has no meta.json"
    assert f"WARNING forge.rundir.checkpoints: {saved_run}/checkpoints/{fault}" in shown
    where = "at step 4, where it stopped in the data: 2 steps to go"
    assert f"INFO forge.training.process: resuming from checkpoints/step_4 {where}" in shown
    assert "is skipped" not in capsys.readouterr().out


@pytest.mark.nightly
def test_a_run_that_diverges_fails_and_goes_on_under_other_options(new_run, monkeypatch, capsys):
    """From the last good state, which was saved."""
    path = new_run("train.max_bad_steps=2 checkpoint.interval=100")
    build = models.build

    def poisoned(section, *, path, **more):
        return Poisoned(loss=(3, 4)) if path == "objective" else build(section, path=path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(models, "build", poisoned)
        assert worker.main([str(path)]) == 1
    said = capsys.readouterr().err
    fault = (
        "the loss was not finite in steps 4 to 5, which is train.max_bad_steps=2 or more in a row. "
        f"Their updates were skipped: {path}/checkpoints/step_5 holds the weights as they were "
        "before them. Lower optimizer.lr or train.grad_clip_norm; debug=anomaly names the "
        "operation; the data were samples 12 to 19"
    )
    assert said.count(f"\n{fault}\n") == 1
    assert "Traceback" not in said
    advice = "a lower optimizer.lr may help, and debug=anomaly names the operation"
    log = (path / "logs" / "rank_0.log").read_text()
    assert log.count("is skipped, since") == 1
    assert f"step 4 is skipped, since its loss is not finite; {advice}\n" in log
    result, error = strict(path / "result.json"), strict(path / "error.json")
    assert (result["status"], result["reason"], result["step"]) == ("failed", "bad_steps", 5)
    assert (error["type"], error["rank"], error["message"]) == ("RuntimeError", 0, fault)
    assert "NoneType" not in error["traceback"]
    end = outcome.attempts(path)[-1]
    assert (end["status"], end["step"]) == ("failed", 5)
    assert end["reason"] == f"RuntimeError: {fault}"
    assert outcome.finished(path) is None
    kept, good = stored(step_of(path, 5)), new_run("train.max_steps=3 scheduler.decay_steps=4")
    assert worker.main([str(good)]) == 0
    assert_bit_equal(kept, stored(step_of(good, 3)))
    alter(path, optimizer__lr=0.001, run__allow_change=["optimizer.lr"])
    assert worker.main([str(path)]) == 0
    assert strict(path / "result.json")["status"] == "finished"
    assert logged(path, "skipped_steps")[6] == 2
    assert set(logged(path, "train/loss")) == set(range(1, 7))
