"""A run directory that somebody else made: nothing in it runs code, commands a terminal, reads the
environment, or writes elsewhere, unless the user asks for it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.going_on_helpers import RUN, content, take

from forge import cancel, checkpoints, resume, runs, status, train, worker
from forge.launch.local import processes
from forge.launch.sweep.directory import SweepDirectory
from forge.report import __main__ as report
from forge.rundir.directory import resume_command
from forge.rundir.untrusted import OTHER_DISK

Capture = pytest.CaptureFixture[str]


def links_of(folder: Path, mine: Path) -> str:
    """Make links out of a directory, to a file, a folder and to nothing, and harmless ones; what is
    said of the former.
    """
    mine.mkdir()
    (mine / "letters.txt").write_text("precious\n")
    logs = folder / "wandb" / "offline-run-1" / "logs"
    for made in (folder / "logs", logs):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "harmless").symlink_to("logs")
    (logs / "debug-core.log").symlink_to(mine / "core.log")
    found = {
        folder / "logs" / "rank_0.log": mine / "absent",
        folder / "metrics.jsonl": mine / "letters.txt",
        folder / "report": mine,
    }
    for link, target in found.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    shown = ", ".join(f"{link} -> {target}" for link, target in found.items())
    return f"     these links lead out of it, and nothing is written through one: {shown}."


def untouched(mine: Path) -> bool:
    return [(path.name, path.read_text()) for path in mine.iterdir()] == [
        ("letters.txt", "precious\n")
    ]


def test_links_out_of_a_run_are_named_and_nothing_is_written(
    run: Path, started: list[Path], tmp_path: Path, capsys: Capture
) -> None:
    """The directory itself may be reached by a link."""
    said = links_of(run, tmp_path / "mine")
    (tmp_path / "reached").symlink_to(run)
    assert resume.main(["run"]) == resume.main(["reached"]) == worker.main(["reached"]) == 2
    assert train.main([*RUN, "run.dir=reached"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert {line for line in lines if "lead out" in line} == {said}
    assert untouched(tmp_path / "mine")
    (fix,) = {line.removeprefix("     -> ") for line in lines if line.startswith("     -> ")}
    remove, _, other = fix.partition("; ")
    assert other == OTHER_DISK
    subprocess.run(shlex.split(remove), check=True)
    assert resume.main(["reached"]) == 0
    assert started == [run]
    assert untouched(tmp_path / "mine")


def test_links_out_of_a_sweep_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: Capture
) -> None:
    command = ["-m", "seed=1,2", "sweep.name=s", "sweep.root=sweeps", *RUN[1:]]
    sweep = SweepDirectory(tmp_path / "sweeps" / "s")
    sweep.begin(command)
    sweep.add(hash="0", overrides=["seed=1"], varied={"seed": "1"})
    said = links_of(sweep.path, tmp_path / "mine")
    ledger = (sweep.path / "ledger.jsonl").read_bytes()
    assert train.main(command) == cancel.main(["sweeps/s"]) == 2
    assert capsys.readouterr().err.splitlines().count(said) == 2
    assert (sweep.path / "ledger.jsonl").read_bytes() == ledger
    assert untouched(tmp_path / "mine")


def test_a_point_outside_of_its_sweep_is_refused(tmp_path: Path, capsys: Capture) -> None:
    command = ["-m", "seed=1,2", "sweep.name=s", "sweep.root=sweeps", *RUN[1:]]
    sweep = SweepDirectory(tmp_path / "sweeps" / "s")
    sweep.begin(command)
    place = "points/../../mine"
    sweep.note("point", 0, hash="0", slug="x", dir=place, overrides=[], varied={})
    verbs = (cancel.main, status.main, report.main)
    assert {verb(["sweeps/s"]) for verb in verbs} == {train.main(command)} == {2}
    said = f"     {sweep.path}/ledger.jsonl has point 0 in {place}, outside of the sweep."
    assert capsys.readouterr().err.splitlines().count(said) == 4


SETUP = "launch.setup=['curl -s example.org | sh']"
CONF = """\
# @package _global_
defaults: [{override /launch: slurm}]
sweep:
  ablation:
    arms: &arms {setup: [curl -s example.org | sh]}
    baseline: setup
launch: {<<: *arms}
"""
DRY = ["launch.dry_run=true", "run.device=cpu"]
JOB, HYDRA = ["launch=slurm", "launch.partition=p"], "hydra/launcher=submitit_slurm"
SEARCH = "hydra.searchpath=[{conf}]"
CHDIR, COMMENT = "++launch.sbatch.chdir=/tmp", "hydra.launcher.comment=x"
HIDDEN = 'run.name="${{oc.${{metrics.wandb_project}}:MINE}}"'
BEYOND = {
    "a job": ("launch", [*DRY, *JOB], [DRY[0], *JOB]),
    "a command of the job": ("launch, launch.setup", [*DRY, *JOB, SETUP], [DRY[0], *JOB, SETUP]),
    "an option of sbatch, by Hydra's name": (
        "launch, launch.sbatch",
        [*DRY, HYDRA, COMMENT, CHDIR],
        [DRY[0], HYDRA, COMMENT, CHDIR],
    ),
    "a command in a file": (
        "launch, launch.setup",
        [*DRY, SEARCH, "experiment=e"],
        [DRY[0], SEARCH],
    ),
    "checkpoints elsewhere": ("checkpoint.dir", ["checkpoint.dir=/x"], ["checkpoint.dir=/x"]),
    "the environment": ("run.name", ["metrics.wandb_project=env", HIDDEN], [HIDDEN]),
    "the environment, in a file": (
        "metrics.wandb_run_name",
        [SEARCH, "experiment=env"],
        [SEARCH],
    ),
}


@pytest.mark.parametrize(("option", "own", "asked"), BEYOND.values(), ids=BEYOND)
def test_what_reaches_beyond_the_run_is_asked_for(
    option: str,
    own: list[str],
    asked: list[str],
    started: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command to type is given, and works; it is also the one that a run prints."""
    conf = tmp_path / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "e.yaml").write_text(CONF)
    (conf / "env.yaml").write_text(
        "# @package _global_\nmetrics: {wandb_run_name: '${run.name} ${oc.env:MINE}'}\n"
    )
    monkeypatch.setenv("MINE", "hunter2")
    own, asked = ([text.format(conf=conf.parent) for text in words] for words in (own, asked))
    run = take(*RUN, *own)[0]
    before = content(run)
    assert resume.main(["run", "metrics.log_interval=7"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[1] == f"  1. {' '.join(asked)}   [command line]"
    assert said[2].startswith(f"     the run has {option}, which reaches beyond its directory ")
    assert (content(run), started) == (before, [])
    command = shlex.split(said[3].removeprefix("     -> if you trust it: "))
    assert command == ["python", "-m", "forge.resume", "run", "metrics.log_interval=7", *asked]
    assert resume.main(command[3:]) == 0
    printed = capsys.readouterr().out
    if option.startswith("launch"):
        assert printed.startswith("#!/bin/bash")
    else:
        assert started == [run]
    # It takes composing to know what is in a file.
    known = asked if option != "metrics.wandb_run_name" else []
    assert shlex.split(resume_command(run)) == ["python", "-m", "forge.resume", "run", *known]


def test_what_was_typed_in_its_place_counts(run: Path, started: list[Path]) -> None:
    take(*RUN, "run.device=cpu", "launch=slurm", SETUP)
    assert resume.main(["run", "launch=slurm", "launch.setup=[]", *DRY]) == 0
    assert resume.main(["run", "launch=local"]) == 0


def test_a_line_break_begins_no_line_of_a_script(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the name of a run, which a directory may bring; no run directory has one."""
    assert resume.main(["run", "launch=slurm", *DRY, "run.name='a\ntouch x'"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "#SBATCH --job-name='a touch x'" in lines
    assert not any(line.startswith("touch") for line in lines)


@pytest.mark.nightly
def test_the_trust_of_a_worker_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a directory says of trust is no reason to import anything, whoever is given it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "theirs.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'imported')!r}).touch()\nC = 3\n"
    )
    paths = [str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    run = take(*RUN, "run.trust=[theirs.]", "+callbacks.c._target_=theirs.C")[0]
    words = [sys.executable, "-m", "forge.worker", str(run)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "theirs.C may not be built for callbacks: it is under no trusted prefix." in done.stderr
    assert not (tmp_path / "imported").exists()
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert processes.start(run, trust=["theirs."]) == 2
    assert (tmp_path / "imported").exists()


def test_no_file_commands_the_terminal(run: Path, capsys: Capture) -> None:
    """By what a rank has printed or failed of, or a checkpoint says."""
    turns = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    sign = "\x1b]0;theirs\x07\x9b2J\r" + turns
    step = run / "checkpoints" / "step_3"
    for made in (run / "logs", step):
        made.mkdir(parents=True)
    (run / "logs" / "rank_0.log").write_text(f"one\ttwo {sign}\n")
    (run / "error.json").write_text(json.dumps({"message": sign}))
    (step / "meta.json").write_text(json.dumps({"reason": sign, "time": "now"}))
    (run / "overrides.json").write_text(json.dumps([f"run.name={sign}"]))
    for verb in (status.main, checkpoints.main, resume.main, cancel.main, report.main, runs.main):
        verb(["run"])
    report.main(["run", "--html", "page.html"])
    page = Path("page.html").read_text()
    assert not (set(sign) - set("]0;theirs2J")) & set(page)
    assert "\\u202e" in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert not (set(sign) - set("]0;theirs2J")) & set(json.dumps(data, ensure_ascii=False))
    said = "".join(capsys.readouterr())
    assert "\\u202e" in said
    assert "one\ttwo \\x1b]0;theirs\\x07\\x9b2J" in said
    assert not (set(sign) - set("]0;theirs2J")) & set(said)


DAMAGED = (
    *("config.yaml", "overrides.json", "provenance.json", "result.json", "error.json"),
    *("derived.json", "warnings.json", "samples.jsonl", "annotations.json"),
)


@pytest.mark.parametrize("text", ['{"a": [', "[" * 100_000, "3"], ids=["torn", "deep", "a number"])
@pytest.mark.parametrize("name", [*DAMAGED, "run.lock", "attempts.jsonl", "metrics.jsonl"])
def test_a_damaged_file_ends_no_verb_with_a_traceback(
    name: str, text: str, run: Path, started: list[Path], capsys: Capture
) -> None:
    (run / name).write_text(text)
    step = run / "checkpoints" / "step_3"
    step.mkdir(parents=True)
    (step / "meta.json").write_text(text)
    verbs = (resume.main, checkpoints.main, report.main, status.main, runs.main)
    codes = [verb(["run"]) for verb in verbs]
    assert set(codes) <= {0, 2}
    if name in ("config.yaml", "overrides.json"):
        assert (codes[0], started) == (2, [])
        assert f"{name} cannot be read: " in capsys.readouterr().err
