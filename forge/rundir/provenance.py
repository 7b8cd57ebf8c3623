"""What a run was made with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forge.rundir.masking import masked

PACKAGES = (
    "forge-lm",
    "torch",
    "hydra-core",
    "omegaconf",
    "numpy",
    "tokenizers",
    "torchao",
    "datasets",
)
OURS = Path(__file__).resolve().parents[1]
BETWEEN = "\x1f"  # words of a command line, where masking looks at two that belong together


def provenance() -> dict[str, Any]:
    """argv, host, Python, package versions, and the git revision of forge and of where the command
    was typed.

    Nothing of the environment, which is where keys and passwords belong.
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
        "cwd_git_revision": revision(Path.cwd()),
    }


def now() -> str:
    """The time with its zone, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def versions() -> dict[str, str | None]:
    """The versions of the packages that a run's numbers may depend on."""
    return {name: _version(name) for name in PACKAGES}


def revision(folder: Path) -> str | None:
    """The git commit that a folder is at, or None."""
    return git(folder, "rev-parse", "HEAD").strip() or None


def diff() -> str:
    """What differs from those commits, in forge and where the command was typed, as `git apply`
    takes it, but for what is masked.
    """
    folders = dict.fromkeys(
        git(folder, "rev-parse", "--show-toplevel").strip() for folder in (OURS, Path.cwd())
    )
    plain = ("--no-ext-diff", "--no-textconv", "--no-color")
    return masked(
        "".join(git(Path(folder), "diff", *plain, "HEAD") for folder in folders if folder)
    )


def git(folder: Path, *arguments: str) -> str:
    """The output of a git command, empty when it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
