"""A signal anywhere: the run saves, says so, and what it left undone is done when it continues, as
if it had never stopped.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from run_helpers import assert_bit_equal, logged, meta, read, step_of, stored

from forge import worker
from forge.rundir import checkpoints, outcome
from forge.training.callbacks import evaluation
from forge.training.callbacks.every_step import BadSteps

OPTIONS = """
    eval.enabled=true eval.interval=2 eval.steps=3 eval.patience=90 eval.sample_prompts=[the]
    eval.sample_tokens=3 eval.sample_interval=4 metrics.log_interval=4 checkpoint.interval=100
    train.max_steps=7
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def undisturbed(folder, trained) -> Path:
    """The run that no signal reached; the same one for all tests."""
    if not (folder / "run").exists():
        shutil.copytree(trained(OPTIONS), folder / "run")
    return folder / "run"


def stop(path: Path, *, evaluation_number: int, batch: int):
    """The worker gets SIGTERM before a batch of an evaluation; both counted from 1."""
    real, count = evaluation.evaluate, [0]

    def evaluate(model, objective, batches, **more):
        count[0] += 1
        batches = disturbed(batches) if count[0] == evaluation_number else batches
        return real(model, objective, batches, **more)

    def disturbed(batches):
        for n, one in enumerate(batches, start=1):
            if n == batch:
                signal.raise_signal(signal.SIGTERM)
            yield one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "evaluate", evaluate)
        assert worker.main([str(path)]) == 143


def assert_ends_as(ours: Path, theirs: Path):
    """The run continues to the same rows, checkpoint and result."""
    assert worker.main([str(ours)]) == 0
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes() != b""
    last = [step_of(run, 7) for run in (ours, theirs)]
    assert_bit_equal(*map(stored, last))
    assert meta(last[0]) == meta(last[1])
    results = [read(run / "result.json") for run in (ours, theirs)]
    for result in results:
        result["metrics"].pop("tokens_per_second")
        del result["goodput"]
    assert results[0] == results[1]


@pytest.mark.ci("2-4")
@pytest.mark.parametrize(("which", "step"), [(1, 2), (2, 4), (3, 6)])
def test_an_evaluation_is_broken_off_and_done_when_the_run_goes_on(
    undisturbed, new_run, which, step
):
    path = new_run(OPTIONS)
    stop(path, evaluation_number=which, batch=2)
    assert step not in logged(path, "eval/loss")
    (one,) = checkpoints.list_checkpoints(path / "checkpoints")
    due = one.meta["callbacks"]["callbacks.evaluation"]["due"]
    assert (one.step, one.meta["reason"], due) == (step, "SIGTERM", True)
    assert_ends_as(path, undisturbed)


@pytest.mark.nightly
def test_an_evaluation_is_broken_off_twice(undisturbed, new_run):
    """The second time it is the one that is due, before the first update."""
    path = new_run(OPTIONS)
    for _ in range(2):
        stop(path, evaluation_number=1, batch=1)
        assert read(path / "result.json")["step"] == 2
    assert_ends_as(path, undisturbed)


@pytest.mark.nightly
def test_a_signal_in_the_evaluation_of_the_end(undisturbed, new_run, capsys):
    """All updates are made and saved, yet the run is stopped, not finished."""
    path = new_run(OPTIONS)
    stop(path, evaluation_number=4, batch=2)
    result = read(path / "result.json")
    assert (result["status"], result["reason"], result["step"]) == ("stopped", "SIGTERM", 7)
    assert (result["metrics"]["eval/step"], result["config"]) == (6, "config.yaml")
    assert_ends_as(path, undisturbed)
    said = "at step 7, where it stopped in the data: nothing is left to train"
    assert said in capsys.readouterr().out
    ends = [row for row in outcome.attempts(path) if row["event"] == "end"]
    found = [(row["status"], row["reason"], row["step"]) for row in ends]
    assert found == [("stopped", "SIGTERM", 7), ("finished", "end", 7)]


@pytest.mark.ci("3")
@pytest.mark.parametrize("step", [1, 3, 4, 6, 7])
def test_a_signal_between_steps_leaves_no_trace_in_the_rows(undisturbed, new_run, step):
    path, real = new_run(OPTIONS), BadSteps.on_step_end

    def signalled(self, loop, output):
        real(self, loop, output)
        if loop.state.step == step:
            signal.raise_signal(signal.SIGUSR1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BadSteps, "on_step_end", signalled)
        assert worker.main([str(path)]) == 128 + signal.SIGUSR1
    assert_ends_as(path, undisturbed)
