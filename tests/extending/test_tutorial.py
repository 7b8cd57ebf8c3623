"""docs/tutorial.md: it shows its files as they are, and its commands run, killed in between."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorial"
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    python -m forge\.(.+)$", PAGE, re.MULTILINE)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project of the page."""
    own = shutil.ignore_patterns("__pycache__", "runs", "sweeps")
    return Path(shutil.copytree(FOLDER, tmp_path / "tutorial", ignore=own))


@pytest.fixture
def run(project: Path) -> Run:
    """Runs a command there."""

    def call(command: str, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", *shlex.split(f"forge.{command}"), *more]
        done = subprocess.run(
            words, cwd=project, env=environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return call


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def one(*parts: str) -> str:
    """The one command with all of these parts."""
    (found,) = [text for text in COMMANDS if all(part in text for part in parts)]
    return found


def test_the_page_shows_its_files() -> None:
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".py", ".yaml")]
    assert len(files) == 12
    for path in files:
        shown = textwrap.indent(path.read_text().rstrip("\n"), "    ")
        assert f"`{path.relative_to(FOLDER)}`\n\n{shown}\n" in PAGE, path


def test_it_is_checked_and_refused_without_importing_anything(run: Run, project: Path) -> None:
    with (project / "mine" / "gru.py").open("a") as file:
        file.write("raise RuntimeError\n")
    assert "mine.gru.GRULM: its parameters" in run(one("check ")).stdout
    said = run(one("model.dmi"), code=2).stderr
    assert textwrap.indent(said.strip(), "    ") in PAGE


@pytest.mark.nightly
def test_it_trains_and_goes_on(run: Run, project: Path) -> None:
    short = ["train.max_steps=6", "checkpoint.interval=3", "eval.interval=3"]
    run(one("runs/one"), *short)
    whole = (project / "runs/one/metrics.jsonl").read_bytes()
    shutil.rmtree(project / "runs/one/checkpoints/step_6")
    (project / "runs/one/result.json").unlink()
    again = run(one("resume").replace("runs/two", "runs/one"))
    assert "resuming from checkpoints/step_3" in again.stdout
    assert (project / "runs/one/metrics.jsonl").read_bytes() == whole


@pytest.mark.nightly
def test_every_command_runs_on_two_ranks_killed_resumed_swept_and_reported(
    run: Run, project: Path
) -> None:
    run(one("runs/one"))
    two = one("runs/two parallel=fsdp")
    words = [sys.executable, "-m", *shlex.split(f"forge.{two}")]
    started = subprocess.Popen(words, cwd=project, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 120
    while not (project / "runs/two/checkpoints/step_20").exists():
        assert time.monotonic() < deadline
        assert started.poll() is None
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert "resuming from checkpoints/step_" in run(one("resume")).stdout
    killed = project / "runs/killed"
    (project / "runs/two").rename(killed)
    run(two)
    ours, theirs = (project / name / "metrics.jsonl" for name in ("runs/killed", "runs/two"))
    assert ours.read_bytes() == theirs.read_bytes(), "as if it had never been killed"
    assert run(one("generate")).stdout.startswith("12 + 7 =")
    run(one("export"))
    assert "gru.weight_ih_l0" in load_file(project / "gru.safetensors")
    for name in ("optimizers", "momentum"):
        assert f"sweep: sweeps/{name}   (4 points: 4 done)" in run(one(f"sweep.name={name}")).stdout
    said = run(one("report")).stdout
    assert "4 runs in 2 arms: 4 done." in said
    assert "optimizer: SGD → Sign" in said
