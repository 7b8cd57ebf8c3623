"""What a run was made with: command, host, versions of packages and code."""

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
"""A folder that somebody handed over names programs in its .git/config; git would start them."""
BETWEEN = "\x1f"  # joins the words of a command line, so that masking sees two that belong together


class Provenance(NamedTuple):
    """What a run was made with, and the changes of the working trees that are in no commit."""

    facts: dict[str, Any]
    diff: str


def collect() -> Provenance:
    """Of this moment; git is asked several times, so that runs made together share it."""
    return Provenance(facts(), diff())


def facts() -> dict[str, Any]:
    """argv, host, Python, package versions, and the git revisions of forge and of where the command
    was typed. Nothing of the environment, which may hold passwords.
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


def typed(argv: Sequence[str]) -> str:
    """The command of these arguments; a verb that was run as a module by its name."""
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
    return git(folder, "rev-parse", "HEAD").strip() or None


def diff() -> str:
    """What differs from the commits of forge and of where the command was typed, as `git apply`
    takes it, with secrets masked.
    """
    folders = (OURS, *_typed_in())
    tops = [git(folder, "rev-parse", "--show-toplevel").strip() for folder in folders]
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    return masked(
        "".join(
            git(Path(top), *_no_filters(top), "diff", *plain, "HEAD")
            for top in dict.fromkeys(tops)
            if top
        )
    )


def _typed_in() -> list[Path]:
    """The working directory, unless it is in a project that is not trusted: git is not run there,
    whatever it is told to leave off.
    """
    here = Path.cwd()
    return [] if waits_for_trust(here) else [here]


def _no_filters(folder: str) -> list[str]:
    """Options of git that switch off the filters which the folder's own settings name."""
    settings = git(
        Path(folder), "config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\."
    )
    names = dict.fromkeys(line.rpartition(".")[0] for line in settings.splitlines())
    off = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in names for each in off for word in ("-c", f"{name}.{each}")]


def git(folder: Path, *arguments: str) -> str:
    """What git prints; empty where it fails. The folder's own settings start no program."""
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
