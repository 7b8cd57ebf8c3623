"""Attacks by a run directory whose config.yaml says the same as its overrides.json, so that none is
refused for the difference alone: each is refused, and nothing is started, run or written elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.going_on_helpers import RUN, content, take
from hydra.core.override_parser.types import Override

from forge import resume, worker
from forge.compose.grammar import read_override
from forge.config.problems import quoted

BREAK = "x\\'\"\ntouch {out}/made\n#"
"""Balanced for sbatch's own reader; for bash a comment, a command and a comment."""
SLURM = ["launch=slurm", "launch.gpus_per_node=0"]
NOT_ITS_OWN = "which reaches beyond its directory and is only used by who asks for it."
CODE = "was made with code outside of forge, which is only used by who asks for it."
PREFIX = "it is under no trusted prefix."
TEXT = "A text that stands in the script of a job has no line break"
ATTACKS: dict[str, tuple[list[str], str]] = {
    "job": (SLURM, NOT_ITS_OWN),
    "partition": ([*SLURM, "launch.partition=theirs"], NOT_ITS_OWN),
    **{
        f"line break in {name}": ([*SLURM, f"launch.{name}={BREAK}"], TEXT)
        for name in ("account", "partition", "qos", "constraint", "mem", "gpu_type")
    },
    "sbatch": ([*SLURM, "+launch.sbatch.chdir={out}"], NOT_ITS_OWN),
    "srun_args": ([*SLURM, "launch.srun_args=['--task-prolog={out}/x']"], NOT_ITS_OWN),
    "setup": ([*SLURM, "launch.setup=['touch {out}/made']"], NOT_ITS_OWN),
    "on_end": (["run.on_end='touch {out}/made'"], NOT_ITS_OWN),
    "checkpoint.dir": (["checkpoint.dir={out}"], NOT_ITS_OWN),
    "remote": (["checkpoint.remote=file://{out}"], NOT_ITS_OWN),
    "tensorboard_dir": (["metrics.tensorboard_dir=../out"], NOT_ITS_OWN),
    "trace_dir": (["profiling.trace_dir={out}"], NOT_ITS_OWN),
    "environment": (["run.name=${{oc.env:HOME}}"], NOT_ITS_OWN),
    "model": (["model._target_=subprocess.Popen"], PREFIX),
    "optimizer": (["optimizer._target_=subprocess.Popen"], PREFIX),
    "objective": (["objective._target_=subprocess.Popen"], PREFIX),
    "callback": (["+callbacks.x._target_=subprocess.Popen"], PREFIX),
    "tracker": (["+trackers.x._target_=subprocess.Popen"], PREFIX),
    "trust": (["run.trust=[subprocess.]", "+callbacks.x._target_=subprocess.Popen"], CODE),
    "package": (["hydra.searchpath=[pkg://theirs]"], CODE),
    "tracker's file": (
        ["+trackers.x._target_=forge.trackers.csv_file.CSVFile", "+trackers.x.file_name={out}/x"],
        NOT_ITS_OWN,
    ),
}


def put(plain: dict[str, Any], key: str, value: Any) -> None:
    above, _, name = key.rpartition(".")
    for part in above.split("."):
        plain = plain.setdefault(part, {})
    plain[name] = value


def handed_over(typed: list[str]) -> Path:
    """A run in run/ whose files say that it was made with these too."""
    groups = [text for text in typed if text in SLURM]
    run = take(*RUN, *groups)[0]
    plain = yaml.safe_load((run / "config.yaml").read_text())
    own = json.loads((run / "overrides.json").read_text())
    for text in typed[len(groups) :]:
        key, _, value = text.partition("=")
        own.append(f"{key}={quoted(value)}" if "\n" in value else text)
        override = read_override(own[-1])
        assert isinstance(override, Override)
        if not key.startswith("hydra."):
            put(plain, key.lstrip("+"), override.value())
    (run / "overrides.json").write_text(json.dumps(own))
    (run / "config.yaml").write_text(yaml.safe_dump(plain))
    return run


def test_one_that_asks_for_nothing_goes_on(started: list[Path], no_git: None) -> None:
    run = handed_over(["metrics.log_interval=7", "optimizer.lr=0.02"])
    assert resume.main(["run"]) == 0
    assert started == [run]


@pytest.mark.parametrize(("typed", "said"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_refused(
    typed: list[str],
    said: str,
    started: list[Path],
    no_git: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By who lets the run continue, and by a rank that is started in the directory all the same."""
    out, submitted = tmp_path / "out", list[Any]()
    out.mkdir()
    monkeypatch.setattr("forge.launch.slurm.jobs.submit_jobs", lambda *a, **_: submitted.append(a))
    run = handed_over([text.format(out=out) for text in typed])
    before = content(run)
    assert resume.main(["run"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "here it is" not in error  # the difference is no reason
    assert (content(run), started, submitted, list(out.iterdir())) == (before, [], [], [])
    if said is PREFIX:
        assert worker.main(["run"]) == 2
        assert said in capsys.readouterr().err
