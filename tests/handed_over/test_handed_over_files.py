"""Files of a run directory that somebody hands over: damaged, endless or no files at all, they end
no verb with a traceback.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from forge.rundir.stored import DEEPEST
from going_on_helpers import end, read

from forge import cancel, checkpoints, export, generate, resume, status
from forge.report import __main__ as report
from forge.rundir import outcome
from forge.rundir.checkpoints import Saved
from forge.rundir.files import from_json, read_json

DEEP = "[" * 100_000 + "]" * 100_000
TOO_DEEP = "it is nested more than 100 deep"


def test_a_checkpoint_that_is_nested_too_deep_is_passed_over(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = run / "checkpoints" / "step_3"
    step.mkdir(parents=True)
    (step / "meta.json").write_text(DEEP)
    assert checkpoints.main(["run"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith("cannot be used: its meta.json cannot be read")
    )
    assert generate.main(["run"]) == export.main(["run", "w.safetensors"]) == 2
    said = "run: there is no complete checkpoint; step_3: its meta.json cannot be read; give a step_N directory, or a run that has one"
    assert capsys.readouterr().err.splitlines() == [said, said]


@pytest.mark.parametrize(
    "name",
    ["config.yaml", "overrides.json", "provenance.json", "result.json", "error.json", "run.lock"],
)
def test_a_file_that_is_nested_too_deep_is_damage(
    name: str, run: Path, started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
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


NAMES = (
    "config.yaml",
    "overrides.json",
    "provenance.json",
    "result.json",
    "error.json",
    "job.json",
    "run.lock",
)
NAMES += ("attempts.jsonl", "metrics.jsonl", "performance.jsonl", "logs/rank_0.log", "derived.json")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_not_waited_for(name: str, run: Path, started: list[Path]) -> None:
    """A pipe that nobody writes to, which opening would wait for."""

    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"{name} is waited for"))
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    signal.alarm(20)
    try:
        codes = [
            verb(["run"]) for verb in (status.main, checkpoints.main, report.main, resume.main)
        ]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert set(codes) <= {0, 2}


def test_what_has_no_end_is_not_read(run: Path) -> None:
    for source in ("/dev/zero", "/dev/full"):
        with pytest.raises(OSError, match="it is no file"):
            read_json(Path(source))
    with (run / "result.json").open("wb") as file:
        file.truncate(2**40)
    assert status.main(["run"]) == 0


DAMAGED = [
    *(
        ("result.json", change)
        for change in (
            {"reason": []},
            {"step": "x"},
            {"config": 5},
            {"metrics": "x"},
            {"objective": {"value": "x"}},
        )
    ),
    *(
        ("checkpoints/step_3/meta.json", change)
        for change in ({"time": 5}, {"reason": 5}, {"metrics": "x"}, {"files": "x"}, {"time": [{}]})
    ),
    *(("error.json", change) for change in ({"message": 5}, [1])),
    ("attempts.jsonl", {"event": "end", "step": "x"}),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED, ids=str)
def test_a_field_of_another_type_is_damage(
    name: str, damage: object, run: Path, started: list[Path]
) -> None:
    """As if the file could not be read, which ends no verb."""
    end(run)
    (run / "checkpoints" / "step_3").mkdir(parents=True)
    step = {
        "format": 2,
        "step": 3,
        "time": "now",
        "reason": "end",
        "files": {},
        "metrics": {"loss": 1.0},
        "best_by": "loss",
    }
    (run / "checkpoints" / "step_3" / "meta.json").write_text(
        json.dumps({**step, "run_id": read(run / "provenance.json")["run_id"]})
    )
    file = run / name
    if not name.startswith("result"):
        (run / "result.json").unlink()
    before = read(file) if file.exists() else {}
    file.write_text(json.dumps({**before, **damage} if isinstance(damage, dict) else damage))
    assert {
        verb(["run"]) for verb in (status.main, checkpoints.main, report.main, resume.main)
    } <= {0, 2}
    if name.endswith("meta.json"):
        assert Saved(file.parent).fault() == "its meta.json cannot be read"
    assert outcome.read_result(run) is None


def test_no_file_commands_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By what a rank has printed or failed of, or a checkpoint says."""
    sign = "\x1b]0;theirs\x07\x9b2J\r"
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "rank_0.log").write_text(f"one\ttwo {sign}\n")
    (run / "error.json").write_text(json.dumps({"message": sign}))
    step = run / "checkpoints" / "step_3"
    step.mkdir(parents=True)
    (step / "meta.json").write_text(json.dumps({"reason": sign, "time": "now"}))
    (run / "overrides.json").write_text(json.dumps([f"run.name={sign}"]))
    for verb in (status.main, checkpoints.main, resume.main, cancel.main, report.main):
        verb(["run"])
    said = "".join(capsys.readouterr())
    assert "one\ttwo \\x1b]0;theirs\\x07\\x9b2J" in said
    assert not set(sign) - set("]0;theirs2J") & set(said)


@pytest.mark.parametrize("endless", ["callbacks: &a {{a: *a}}", "callbacks: {{{lines}, a: *x40}}"])
def test_an_alias_in_a_config_is_damage(
    endless: str, run: Path, started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It makes what is read endless, or as good as that."""
    lines = ", ".join(
        ["x0: &x0 [1]", *(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 41))]
    )
    file = run / "config.yaml"
    text = file.read_text().replace("callbacks: {}", endless.format(lines=lines))
    assert "*" in text
    file.write_text(text)
    assert resume.main(["run"]) == checkpoints.main(["run"]) == 2
    assert capsys.readouterr().err.count("cannot be read: it has an alias, *") == 2
    assert started == []
