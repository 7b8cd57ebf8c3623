"""A signal anywhere: the run saves, says so, and what it left undone is done when it goes on, as if
it had never stopped.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import assert_bit_equal, logged, meta, stored

from forge import worker
from forge.rundir import checkpoints, outcome
from forge.training import assemble as assembling
from forge.training import evaluation

EVALUATE = ("eval.enabled=true", "eval.interval=2", "eval.steps=3", "eval.patience=90")
SAMPLE = ("eval.sample_prompts=[the]", "eval.sample_tokens=3", "eval.sample_interval=4")
OPTIONS = (
    *EVALUATE,
    *SAMPLE,
    "metrics.log_interval=4",
    "checkpoint.interval=100",
    "train.max_steps=7",
)
ROWS = ("metrics.jsonl", "samples.jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def undisturbed(folder: Path, trained: Callable[..., Path]) -> Path:
    """The run that no signal reached; the same one for all tests."""
    if not (folder / "run").exists():
        shutil.copytree(trained(*OPTIONS), folder / "run")
    return folder / "run"


def sending(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, *, evaluation_number: int, batch: int
) -> None:
    """The signal comes before a batch of an evaluation of this process; both counted from 1."""
    real, count = evaluation.evaluate, [0]

    def evaluate(model: Any, batches: Any, **more: Any) -> dict[str, float]:
        count[0] += 1
        return real(model, disturbed(batches) if count[0] == evaluation_number else batches, **more)

    def disturbed(batches: Any) -> Any:
        for n, one in enumerate(batches, start=1):
            if n == batch:
                signal.raise_signal(number)
            yield one

    monkeypatch.setattr(assembling, "evaluate", evaluate)


def assert_undisturbed(ours: Path, theirs: Path) -> None:
    for name in ROWS:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes() != b""
    last = [run / "checkpoints" / "step_7" for run in (ours, theirs)]
    assert_bit_equal(*map(stored, last))
    assert meta(last[0]) == meta(last[1])
    results = [json.loads((run / "result.json").read_text()) for run in (ours, theirs)]
    for result in results:
        result["metrics"].pop("tokens_per_second")
    assert results[0] == results[1]


@pytest.mark.parametrize(("which", "step"), [(1, 2), (2, 4), (3, 6)])
def test_an_evaluation_is_broken_off_and_done_when_the_run_goes_on(
    undisturbed: Path,
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    which: int,
    step: int,
) -> None:
    path, number = new_run(*OPTIONS), signal.SIGTERM
    with monkeypatch.context() as patch:
        sending(patch, number, evaluation_number=which, batch=2)
        assert worker.main([str(path)]) == 128 + number
    assert step not in logged(path, "eval/loss")
    (one,) = checkpoints.listed(path / "checkpoints")
    assert (one.step, one.meta["reason"], one.meta["callbacks"]["Evaluation"]["due"]) == (
        step,
        number.name,
        True,
    )
    assert worker.main([str(path)]) == 0
    assert_undisturbed(path, undisturbed)


def test_an_evaluation_is_broken_off_twice(
    undisturbed: Path, new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it is the one that is due, before the first update."""
    path = new_run(*OPTIONS)
    for _ in range(2):
        with monkeypatch.context() as patch:
            sending(patch, signal.SIGTERM, evaluation_number=1, batch=1)
            assert worker.main([str(path)]) == 143
        assert json.loads((path / "result.json").read_text())["step"] == 2
    assert worker.main([str(path)]) == 0
    assert_undisturbed(path, undisturbed)


def test_a_signal_in_the_evaluation_of_the_end(
    undisturbed: Path,
    new_run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All updates are made and saved, yet the run is stopped, not finished."""
    path = new_run(*OPTIONS)
    with monkeypatch.context() as patch:
        sending(patch, signal.SIGTERM, evaluation_number=4, batch=2)
        assert worker.main([str(path)]) == 143
    result = json.loads((path / "result.json").read_text())
    assert (result["status"], result["reason"], result["step"]) == ("stopped", "SIGTERM", 7)
    assert (result["metrics"]["eval/step"], result["config"]) == (6, "config.yaml")
    capsys.readouterr()
    assert worker.main([str(path)]) == 0
    assert (
        "at step 7, where it stopped in the data: nothing is left to train"
        in capsys.readouterr().out
    )
    assert_undisturbed(path, undisturbed)
    ends = [
        (line["status"], line["reason"], line["step"])
        for line in outcome.attempts(path)
        if line["event"] == "end"
    ]
    assert ends == [("stopped", "SIGTERM", 7), ("finished", "end", 7)]


@pytest.mark.parametrize("step", [1, 3, 4, 6, 7])
def test_a_signal_between_steps_leaves_no_trace_in_the_rows(
    undisturbed: Path, new_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path = new_run(*OPTIONS)
    with monkeypatch.context() as patch:
        told = assembling.BadSteps.on_step_end

        def signalled(self: Any, loop: Any, output: Any) -> None:
            told(self, loop, output)
            if loop.state.step == step:
                signal.raise_signal(signal.SIGUSR1)

        patch.setattr(assembling.BadSteps, "on_step_end", signalled)
        assert worker.main([str(path)]) == 128 + signal.SIGUSR1
    assert worker.main([str(path)]) == 0
    assert_undisturbed(path, undisturbed)
