"""The provenance of a run: command, host, versions of packages and code."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from forge.rundir.masking import masked
from forge.rundir.trusted import waits_for_trust

PACKAGES = "forge-lm torch hydra-core omegaconf numpy tokenizers torchao datasets"
OURS = Path(__file__).resolve().parents[1]
NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""git would start programs named in the .git/config of a folder from somebody else."""
BETWEEN = "\x1f"  # joins the words of a command line: masking sees an option with its value


class Provenance(NamedTuple):
    """The facts of a run's making, and the uncommitted changes of the working trees."""

    facts: dict[str, Any]
    diff: str


def collect() -> Provenance:
    """Collect the present provenance; git is asked several times, so runs made together share a
    result.
    """
    return Provenance(facts(), diff())


def facts() -> dict[str, Any]:
    """argv, host, Python, package versions, and the git revisions of forge and of the working
    directory.

    Nothing of the environment, a possible place of passwords.
    """
    return {
        "argv": masked(BETWEEN.join(sys.argv)).split(BETWEEN),
        "cwd": os.getcwd(),
        "time": now(),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
        "git_revision": revision(OURS),
        "cwd_git_revision": next(map(revision, _typed_in()), None),
    }


def typed_command(argv: Sequence[str]) -> str:
    """The command of these arguments; a verb run as a module by its name."""
    file = Path(argv[0])
    *_, folder, name = ["", *file.with_suffix("").parts]
    name = folder if name == "__main__" else name
    if file.suffix != ".py" or "forge" not in (folder, file.parent.parent.name):
        return shlex.join([file.name, *argv[1:]])
    return shlex.join(["python", "-m", f"forge.{name}", *argv[1:]])


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES.split()}


def revision(folder: Path) -> str | None:
    return _git(folder, "rev-parse", "HEAD").strip() or None


def diff() -> str:
    """Differences to the commits of forge and of the working directory, in the form of `git apply`.

    Secrets are masked.
    """
    folders = (OURS, *_typed_in())
    tops = [_git(folder, "rev-parse", "--show-toplevel").strip() for folder in folders]
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    return masked(
        "".join(
            _git(Path(top), *_no_filters(top), "diff", *plain, "HEAD")
            for top in dict.fromkeys(tops)
            if top
        )
    )


def _typed_in() -> list[Path]:
    """The working directory, unless in an untrusted project: git is never run there."""
    working_dir = Path.cwd()
    return [] if waits_for_trust(working_dir) else [working_dir]


def _no_filters(folder: str) -> list[str]:
    """Options of git that switch off the filters named by the folder's own settings."""
    settings = _git(
        Path(folder), "config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\."
    )
    names = dict.fromkeys(line.rpartition(".")[0] for line in settings.splitlines())
    off = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in names for setting in off for word in ("-c", f"{name}.{setting}")]


def _git(folder: Path, *arguments: str) -> str:
    """The output of git; empty where git fails. The folder's own settings start no program."""
    command = ["git", *NO_PROGRAMS, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
