"""`python -m forge.resume RUN`: resumes from stored overrides, refuses word by word, and asks for
consent to code of others.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.going_on_helpers import RUN, content, read, take

from forge import resume
from forge.launch.local import processes
from forge.rundir import saved_config, versions


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forge.rundir.provenance.diff", lambda: "")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories that a worker would be started in."""
    paths: list[Path] = []
    monkeypatch.setattr(processes, "start", lambda path, ranks, **_: paths.append(path) or 0)
    return paths


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.nightly
def test_a_finished_run_is_made_longer_from_elsewhere(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    done = verb("forge.resume", "../tiny_run")
    said = "this run is finished: all steps done, after 6 steps; to continue: "
    command = f"python -m forge.resume {tiny_run} train.max_steps=12"
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, f"{said}{command}")
    longer = verb(*shlex.split(command)[2:], "metrics.enable_console=true")
    assert (longer.returncode, longer.stderr) == (0, "")
    assert set(longer.stdout.splitlines()[:4]) == {
        f"run directory: {tiny_run}   (resume with: python -m forge.resume {tiny_run})",
        "  changed: metrics.enable_console=true   (was false; kept in changes.jsonl)",
        "  changed: scheduler.decay_steps=10   (was 4; kept in changes.jsonl)",
        "  changed: train.max_steps=12   (was 6; kept in changes.jsonl)",
    }
    where = "step_6 at step 6, where it stopped in the data: 6 steps to go"
    assert f"resuming from checkpoints/{where}" in longer.stdout
    assert read(tiny_run / "result.json")["step"] == 12


def test_it_starts_a_worker_in_the_run(
    started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    take(*RUN)
    assert resume.main(["run"]) == 0
    assert started == [tmp_path / "run"]
    again = "resume with: python -m forge.resume run"
    said = ["run directory: run   (" + again + ")", "start: load torch on 1 rank"]
    assert capsys.readouterr().out.splitlines() == said
    assert resume.main(["run", "metrics.log_interval=3", "eval.target=2.5"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "changed" in line] == [
        "  changed: eval.target=2.5   (was null; kept in changes.jsonl)",
        "  changed: metrics.log_interval=3   (was 10; kept in changes.jsonl)",
    ]


def test_a_config_dir_given_again_counts(started: list[Path], tmp_path: Path) -> None:
    (tmp_path / "conf" / "metrics").mkdir(parents=True)
    (tmp_path / "conf" / "metrics" / "mine.yaml").write_text("log_interval: 7\n")
    take(*RUN)
    assert resume.main(["run", "--config-dir", "conf", "metrics=mine"]) == 0
    assert saved_config.load_config(Path("run/config.2.yaml"), trust=()).metrics.log_interval == 7
    assert resume.main(["run"]) == 0
    assert not Path("run/config.3.yaml").exists()


MODEL = """\
{n} problems; nothing was started or written.
  1. model.n_layers=3   [command line]
     the run in {run} has model.n_layers=2; here it is 3.
     -> model.n_layers=2, run.allow_change=[model.n_layers], or another run.dir
  2. model.activation=relu2   [command line]
     the run in {run} has model.activation=silu; here it is relu2.
     -> model.activation=silu, run.allow_change=[model.activation], or another run.dir
  3. model.gated_mlp=false   [{where}; worked out: model.activation=relu2]
     the run in {run} has model.gated_mlp=true; here it is false.
     -> model.gated_mlp=true, run.allow_change=[model.gated_mlp], or another run.dir
"""


def test_another_model_is_refused_with_a_diff_until_it_is_allowed(
    started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = take(*RUN, "model.ffn_hidden_dim=64")
    before = content(path)
    capsys.readouterr()
    changed = ["model.n_layers=3", "model.activation=relu2"]
    assert resume.main(["run", *changed]) == 2
    out, err = capsys.readouterr()
    where = err.partition("model.gated_mlp=false   [")[2].partition(";")[0]
    assert (out, err) == ("", MODEL.format(n=3, run=path, where=where))
    assert (content(path), started) == (before, [])
    assert resume.main(["run", *changed, "run.allow_change=[model.n_layers]"]) == 2
    assert capsys.readouterr().err.startswith("2 problems;")
    assert resume.main(["run", *changed, "run.allow_change=[model]"]) == 0
    assert started == [path]
    recorded = [c["key"] for c in versions.read_config_part(path, "changes", 2) if not c["free"]]
    assert recorded == ["model.n_layers", "model.activation", "model.gated_mlp"]


NOTHING = """\
1 problem; nothing was started or written.
  1. {place}   [command line]
     {what}
     -> {fix}
"""
RUN_OF = "give the directory of a run"
NO_RUN = {
    "absent": ("absent is no run directory: there is no such directory.", RUN_OF),
    "folder": ("folder is no run directory: it has no config.yaml.", RUN_OF),
    "file": ("file is no run directory: it has no config.yaml.", RUN_OF),
    "RUN": ("which run is to continue?", "python -m forge.resume runs/<run>"),
}


@pytest.mark.parametrize("place", NO_RUN)
def test_no_run(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    Path("file").write_text("")
    assert resume.main([place, "seed=1"] if place != "RUN" else []) == 2
    what, fix = NO_RUN[place]
    assert capsys.readouterr().err == NOTHING.format(place=place, what=what, fix=fix)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `others` with a config folder and a callback; importing it leaves a trace."""
    folder = tmp_path / "lib" / "others"
    (folder / "conf" / "metrics").mkdir(parents=True)
    trace = f"import pathlib; pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    (folder / "__init__.py").write_text(trace)
    (folder / "conf" / "__init__.py").write_text("")
    (folder / "conf" / "metrics" / "theirs.yaml").write_text("log_interval: 7\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield
    imported()


def imported() -> bool:
    """Whether the package was, since this was asked last."""
    seen = Path("imported").exists()
    Path("imported").unlink(missing_ok=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "others"]:
        del sys.modules[name]
    return seen


CODE = {
    "trust": ["run.trust=[others.]"],
    "a package to search": ["hydra.searchpath=[pkg://others.conf]", "metrics=theirs"],
    "a package to search, hidden": [r"hydra.searchpath=[pkg\://others.conf]", "metrics=theirs"],
}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("options", CODE.values(), ids=CODE)
def test_code_of_others_is_used_only_by_who_asks_for_it(
    options: list[str], started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command to type is given, and works."""
    path, _ = take(*RUN, *options)
    before = content(path)
    imported()
    capsys.readouterr()
    assert resume.main(["run", "seed=42"]) == 2
    assert not imported()
    assert (content(path), started) == (before, [])
    said = capsys.readouterr().err.splitlines()
    assert said[2].startswith("     the run was made with code outside of forge, ")
    command = shlex.split(said[3].removeprefix("     -> if you trust it: "))
    assert command[:4] == ["python", "-m", "forge.resume", "run"]
    assert resume.main(command[3:]) == 0
    assert started == [path]
    assert not Path("run/config.2.yaml").exists(), "it is the same run"
    printed = capsys.readouterr().out.splitlines()[0].partition("(resume with: ")[2]
    assert shlex.split(printed[:-1]) == command, "what a run prints asks for it as well"


def test_trust_that_somebody_wrote_into_a_run_is_not_taken(
    started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither that of its overrides nor that of its config."""
    path, _ = take(*RUN)
    config, evil = path / "config.yaml", "+callbacks.e={_target_:evil.Callback}"
    for added, said in (
        (["++run.trust=[evil.]", evil], "the run was made with code outside of forge"),
        ([evil], "evil.Callback may not be built for callbacks: it is under no trusted prefix."),
    ):
        (path / "overrides.json").write_text(json.dumps([*RUN[1:], *added]))
        assert resume.main(["run"]) == 2
        assert said in capsys.readouterr().err
    assert started == []
    (path / "overrides.json").write_text(json.dumps(RUN[1:]))
    text = config.read_text().replace("trust: []", "trust: ['evil.']")
    config.write_text(text.replace("callbacks:", "callbacks:\n  e: {_target_: evil.Callback}"))
    assert resume.main(["run"]) == 0
    kept = saved_config.load_own(path)
    assert (kept.run.trust, "e" in kept.callbacks) == ((), False)


def test_a_command_that_somebody_wrote_into_a_run_is_not_run(
    started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by resume, nor by a worker that is given the directory."""
    path, _ = take(*RUN)
    mark = tmp_path / "ran"
    entry = f"{{_target_: forge.doctor.finding.run_program, command: [touch, {mark}], seconds: 5}}"
    said = "forge.doctor.finding.run_program may not be built for callbacks."
    (path / "overrides.json").write_text(json.dumps([*RUN[1:], f"+callbacks.e={entry}"]))
    assert resume.main(["run"]) == 2
    assert said in capsys.readouterr().err
    (path / "config.yaml").write_text(
        (path / "config.yaml").read_text().replace("callbacks:", f"callbacks:\n  e: {entry}")
    )
    done = verb("forge.worker", "run")
    assert (done.returncode, started, mark.exists()) == (2, [], False)
    assert said in done.stderr
