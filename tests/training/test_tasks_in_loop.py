"""Tasks in the loop: when they run, that training is bit-equal beside them, and on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TWO_LAYERS
from run_helpers import logged

import forge
from forge.compose import composition
from forge.config.problems import ConfigError
from forge.report.__main__ import main as report
from forge.rundir import evaluations
from forge.runs import main as runs

ROWS = [
    {"prompt": "the", "choices": ["sea", "ship"], "answer": 0},
    {"prompt": "of", "choices": ["sea", "ship", "whale"], "answer": "whale"},
]
GENERATED = {"prompt": "the white", "answer": "whale"}


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Any:
    def run(name: str, *more: str) -> Path:
        own = ["data=text", f"data.path={text_file}", f"run.dir={tmp_path / name}"]
        loop = ["eval.enabled=true", "eval.interval=3", "eval.steps=1", "eval.sample_tokens=6"]
        overrides = [*own, *TWO_LAYERS, *loop, "eval.sample_interval=2", *more]
        assert forge.train(forge.compose(overrides)).status == "finished"
        return tmp_path / name

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    (tmp_path / "g.jsonl").write_text(json.dumps(GENERATED))
    generation = f"{{path:{tmp_path}/g.jsonl,kind:generation,temperature:1.0,max_tokens:5}}"
    return [f"+eval.tasks.q.path={tmp_path}/q.jsonl", f"+eval.tasks.g={generation}"]


WHEN = ["eval.tasks_interval=4", "eval.tasks_steps=[1]", "eval.tasks_at_start=true"]


def test_training_is_bit_equal_beside_tasks(train: Any, files: list[str], capsys: Any) -> None:
    plain = train("plain")
    beside = train("beside", *files, *WHEN, "model.dropout=0")
    for name in ("train/loss", "train/grad_norm", "eval/loss"):
        assert logged(plain, name) == logged(beside, name)
    samples = [(run / "samples.jsonl").read_text() for run in (plain, beside)]
    assert samples[0] == samples[1]
    assert [each["step"] for each in evaluations.summaries(beside) if each["task"] == "q"] == [
        *(0, 1, 4, 6)
    ]
    accuracy = evaluations.latest(beside)["q"]["metrics"]["accuracy"]["value"]
    result = json.loads((beside / "result.json").read_text())["metrics"]
    assert result["eval/q/accuracy"] == accuracy
    assert len(logged(beside, "eval/q/accuracy")) == 4
    verb = forge.load(beside).evaluate(tasks=[files[0].partition("=")[2]])
    assert verb["q/bits_per_byte"] == pytest.approx(result["eval/q/bits_per_byte"], rel=1e-6)
    capsys.readouterr()
    assert report([str(beside)]) == 0
    assert f"Task q at step 6: accuracy {accuracy:.4f}" in capsys.readouterr().out
    assert "std. error" in (beside / "report" / "index.html").read_text()
    assert runs([str(beside.parent), "--json"]) == 0
    rows = {Path(row["path"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert rows["beside"]["tasks"]["q"]["metrics"]["accuracy"]["value"] == accuracy
    assert rows["plain"]["tasks"] == {}


def test_tasks_on_two_ranks_equal_those_on_one(train: Any, files: list[str]) -> None:
    options = ["train.global_batch_size=8", "parallel=fsdp", "optimizer.lr=0.001"]
    one = train("one", files[0], *options)
    two = train("two", files[0], *options, "run.num_processes=2")
    scores = [[row["scores"] for row in evaluations.item_rows(run, "q", 6)] for run in (one, two)]
    for left, right in zip(*scores, strict=True):
        for score, other in zip(left, right, strict=True):
            assert score == pytest.approx(other, rel=1e-4)


def test_a_checkpoint_is_saved_at_named_steps(train: Any) -> None:
    run = train(
        "run", "checkpoint.steps=[3]", "checkpoint.per_decade=2", "checkpoint.keep_last_n=0"
    )
    saved = {path.name for path in (run / "checkpoints").iterdir()}
    assert saved == {"step_1", "step_3", "step_6"}


def test_a_task_that_cannot_run_is_a_problem_of_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        composition.config([f"+eval.tasks.q.path={tmp_path}/none.jsonl"]).validate()
    assert "eval.tasks.q" in str(caught.value)
