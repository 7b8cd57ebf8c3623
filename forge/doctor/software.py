"""Python, packages, git, a compiler, and the login to W&B."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from forge.config.wandb_login import login
from forge.doctor.ask import ask
from forge.doctor.finding import Finding, missing, ok, warn

DISTRIBUTION = "forge-lm"
OLDEST = (3, 11)
OPTIONAL = {
    "torchao": "quantisation",
    "datasets": "data sets of Hugging Face",
    "safetensors": "forge.export",
    "submitit": "launch=slurm",
    "tensorboard": "metrics.enable_tensorboard=true",
    "wandb": "metrics.enable_wandb=true",
    "nvidia-ml-py": "counting GPUs",
}
"""Requirements that a plain run on the CPU does without, and what they are for."""
COMPILERS = ("c++", "g++", "clang++")


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The version, and where it is."""
    found = (
        f"{'.'.join(map(str, version))} ({platform.python_implementation()}) at {sys.executable}"
    )
    if version[:2] < OLDEST:
        return missing(
            "Python",
            found,
            f"forge needs {'.'.join(map(str, OLDEST))} or newer: make a new virtual environment",
            needed=True,
        )
    return ok("Python", found)


def requirement(name: str) -> str:
    """The versions of a package that forge requires, such as '<2.14,>=2.11'; empty when any will do
    or nothing is known.
    """
    return _requirements().get(name, "")


def outside(version: str, wanted: str) -> bool:
    """Whether a version is not among those that are wanted; a pre-release counts as what it
    precedes.
    """
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version
    except ImportError:
        return False
    return bool(wanted) and not SpecifierSet(wanted).contains(Version(version).base_version)


def packages() -> list[Finding]:
    """One line for all that are well, and one for each that is not; torch has its own."""
    wanted = {name: versions for name, versions in _requirements().items() if name != "torch"}
    if not wanted:
        found = f"{DISTRIBUTION} is not installed here, so its requirements are not known"
        return [warn("packages", found, "pip install -e . in a checkout")]
    bad = [finding for name, versions in wanted.items() if (finding := _package(name, versions))]
    good = len(wanted) - len(bad)
    return [
        *(
            [
                ok(
                    "packages",
                    f"{good} of {len(wanted)} that forge requires are there, in versions it takes",
                )
            ]
            if good
            else []
        ),
        *bad,
    ]


def git() -> Finding:
    """git, and whether it reads the checkout; a run notes the revision it was made with."""
    path, fix = (
        shutil.which("git"),
        "only needed for the revision and the diff in a run's provenance",
    )
    if path is None:
        return missing("git", "there is no git on PATH", f"install git; {fix}")
    root = Path(__file__).resolve().parents[2]
    answer = ask([path, "-C", str(root), "rev-parse", "--short", "HEAD"], seconds=5)
    if answer is None or answer.code is None:
        return warn("git", f"{path} does not answer", fix)
    if "dubious ownership" in answer.err:
        return warn(
            "git",
            f"it refuses to read {root}, which belongs to another user",
            f"git config --global --add safe.directory {root}",
        )
    return ok(
        "git",
        f"{path}; {f'revision {answer.out.strip()}' if answer.code == 0 else 'forge is not run from a checkout'}",
    )


def compiler(environ: Mapping[str, str] = os.environ, include: str | None = None) -> Finding:
    """What torch.compile needs to make kernels: a C++ compiler, and the header files of Python."""
    only = "only needed for train.compile_model=true"
    names = [environ["CXX"]] if environ.get("CXX") else COMPILERS
    path = next(
        (found for name in names if (found := shutil.which(name, path=environ.get("PATH")))), None
    )
    if path is None:
        return missing(
            "compiler",
            f"no C++ compiler: {', '.join(names)} not found",
            f"install g++ or clang++, or set CXX; {only}",
        )
    headers = Path(include or sysconfig.get_path("include"), "Python.h")
    if not headers.is_file():
        return warn(
            "compiler",
            f"{path}, but no {headers}",
            f"install the header files of Python (python3-dev, python3-devel); {only}",
        )
    return ok("compiler", path)


def wandb(environ: Mapping[str, str] = os.environ) -> Finding:
    """Whether there is a login."""
    only = "only needed for metrics.enable_wandb=true with metrics.wandb_mode=online"
    found = login(environ)
    if found.source:
        return ok("W&B", f"logged in to {found.host} by {found.source}")
    if found.fault:
        return warn("W&B", found.fault, f"correct the file; {only}")
    return missing("W&B", f"no login to {found.host}", f"wandb login; {only}")


def _requirements() -> dict[str, str]:
    """Name and versions of what forge requires, extras left out."""
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    found = [
        re.match(r"([\w.-]+)[^;<>=!~]*([^;]*)", text) for text in texts if "extra ==" not in text
    ]
    return {match[1]: match[2].strip() for match in found if match}


def _package(name: str, versions: str) -> Finding | None:
    purpose = OPTIONAL.get(name)
    fix = f"pip install '{name}{versions}'" + (f"; only needed for {purpose}" if purpose else "")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return missing(name, "not installed", fix, needed=purpose is None)
    if outside(version, versions):
        return missing(name, f"{version}; forge needs {versions}", fix, needed=purpose is None)
    return None
