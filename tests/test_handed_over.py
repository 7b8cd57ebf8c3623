"""A run directory that somebody hands over: nothing in it runs, ends a verb with a traceback, or writes outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from going_on_helpers import take

from forge import checkpoints, export, generate, report, resume, status
from forge.config.stored import DEEPEST, from_json
from forge.launch import local

RUN = ("run.dir=run", "model.dim=64", "model.n_heads=4", "train.max_steps=40", "scheduler.warmup_steps=4")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories that a worker would be started in."""
    paths: list[Path] = []
    monkeypatch.setattr(local, "start", lambda path, ranks: paths.append(path) or 0)
    return paths


@pytest.fixture
def run(started: list[Path]) -> Path:
    return take(*RUN)[0]


DEEP = "[" * 100_000 + "]" * 100_000
TOO_DEEP = "it is nested more than 100 deep"


def test_a_checkpoint_that_is_nested_too_deep_is_passed_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = run / "checkpoints" / "step_3"
    step.mkdir(parents=True)
    (step / "meta.json").write_text(DEEP)
    assert checkpoints.main(["run"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("cannot be used: its meta.json cannot be read")
    assert generate.main(["run"]) == export.main(["run", "w.safetensors"]) == 2
    said = "run: there is no complete checkpoint; step_3: its meta.json cannot be read; give a step_N directory, or a run that has one"
    assert capsys.readouterr().err.splitlines() == [said, said]


@pytest.mark.parametrize("name", ["config.yaml", "overrides.json", "provenance.json", "result.json", "error.json", "run.lock"])
def test_a_file_that_is_nested_too_deep_is_damage(name: str, run: Path, started: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """In the C loader of YAML, too, which such a file would end the whole process by."""
    (run / name).write_text(DEEP)
    codes = [verb(["run"]) for verb in (resume.main, checkpoints.main, report.main, status.main)]
    said = capsys.readouterr().err
    assert set(codes) <= {0, 2}
    if name in ("config.yaml", "overrides.json"):
        assert (codes[0], started) == (2, [])
        assert f"{name} cannot be read: {TOO_DEEP}" in said


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_how_deep_a_file_may_be(left: str, right: str) -> None:
    assert from_json(left * DEEPEST + "1" + right * DEEPEST)
    with pytest.raises(ValueError, match=TOO_DEEP):
        from_json(left * (DEEPEST + 1) + "1" + right * (DEEPEST + 1))
