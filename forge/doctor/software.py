"""Python, packages, Slurm's commands, git, a compiler, and the login to W&B."""

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
from forge.doctor.finding import Finding, ask, missing, ok, warn

DISTRIBUTION = "forge-lm"
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
SLURM = ("sinfo", "sbatch", "srun", "sacct")


def python() -> Finding:
    kind = platform.python_implementation()
    return ok("Python", f"{platform.python_version()} ({kind}) at {sys.executable}")


def requirements() -> dict[str, str]:
    """Name and versions, such as '<2.14,>=2.11', of what forge requires, without extras."""
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    plain = (text for text in texts if "extra ==" not in text)
    found = [re.match(r"([\w.-]+)[^;<>=!~]*([^;]*)", text) for text in plain]
    return {match[1]: match[2].strip() for match in found if match}


def outside(version: str, wanted: str) -> bool:
    """Whether a version is not wanted; a pre-release counts as what it precedes."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version
    except ImportError:
        return False
    return bool(wanted) and not SpecifierSet(wanted).contains(Version(version).base_version)


def packages() -> list[Finding]:
    """One line for all that are well, and one for each that is not; torch has its own."""
    wanted = {name: versions for name, versions in requirements().items() if name != "torch"}
    if not wanted:
        found = f"{DISTRIBUTION} is not installed here, so its requirements are not known"
        return [warn("packages", found, "pip install -e . in a checkout")]
    bad = []
    for name, versions in wanted.items():
        try:
            found = metadata.version(name)
            if not outside(found, versions):
                continue
            found += f"; forge needs {versions}"
        except metadata.PackageNotFoundError:
            found = "not installed"
        only = f"; only needed for {OPTIONAL[name]}" if name in OPTIONAL else ""
        fix = f"pip install '{name}{versions}'{only}"
        bad.append(missing(name, found, fix, needed=not only))
    good = f"{len(wanted) - len(bad)} of {len(wanted)}"
    return [ok("packages", f"{good} that forge requires are there, in versions it takes"), *bad]


def slurm(seconds: float = 5.0) -> Finding:
    """sinfo must name a partition; without sacct the end of a job is learned from squeue alone."""
    only = "only needed for launch=slurm"
    paths = {name: path for name in SLURM if (path := shutil.which(name))}
    absent = ", ".join(name for name in SLURM if name not in paths)
    if not paths:
        fix = f"{only}: use a login node, or load the site's slurm module"
        return missing("Slurm", f"no {absent} on PATH", fix)
    if absent:
        fix = f"install the rest of Slurm's client commands; {only}"
        return warn("Slurm", f"{', '.join(paths)} on PATH, but no {absent}", fix)
    silent, ask_for_help = f"no answer in {seconds:g} s", f"ask the administrator; {only}"
    said = ask([paths["sinfo"], "--noheader", "--format=%P"], seconds=seconds)
    if said is None or said.code is None:
        what = f"sinfo gives {silent}: the controller is down or cannot be reached"
        return warn("Slurm", what, ask_for_help)
    if said.code:
        return warn("Slurm", f"sinfo fails: {said.last_line}", f"check SLURM_CONF; {only}")
    partitions = dict.fromkeys(said.out.split())
    if not partitions:
        return warn("Slurm", "sinfo lists no partition that you may use", ask_for_help)
    found = f"partitions: {', '.join(partitions)}"
    sacct = [paths["sacct"], "--noheader", "--allocations", "--starttime=now"]
    records = ask(sacct, seconds=seconds)
    if records and records.code == 0:
        return ok("Slurm", found)
    why = records.last_line if records and records.code else silent
    fix = "the end of a job is then learned from squeue, a few minutes at most after it"
    return warn("Slurm", f"{found}; sacct fails: {why}", fix)


def git() -> Finding:
    """git, and whether it reads the checkout; a run notes the revision it was made with."""
    fix = "only needed for the revision and the diff in a run's provenance"
    path, root = shutil.which("git"), Path(__file__).resolve().parents[2]
    if path is None:
        return missing("git", "there is no git on PATH", f"install git; {fix}")
    answer = ask([path, "-C", str(root), "rev-parse", "--short", "HEAD"], seconds=5)
    if answer is None or answer.code is None:
        return warn("git", f"{path} does not answer", fix)
    if "dubious ownership" in answer.err:
        what = f"it refuses to read {root}, which belongs to another user"
        return warn("git", what, f"git config --global --add safe.directory {root}")
    revision = f"revision {answer.out.strip()}"
    return ok("git", f"{path}; {'forge is not run from a checkout' if answer.code else revision}")


def compiler(environ: Mapping[str, str] = os.environ, include: str | None = None) -> Finding:
    """What torch.compile needs to make kernels: a C++ compiler, and the header files of Python."""
    only = "only needed for train.compile_model=true"
    names = [environ["CXX"]] if environ.get("CXX") else COMPILERS
    found = (shutil.which(name, path=environ.get("PATH")) for name in names)
    path = next(filter(None, found), None)
    if path is None:
        fix = f"install g++ or clang++, or set CXX; {only}"
        return missing("compiler", f"no C++ compiler: {', '.join(names)} not found", fix)
    headers = Path(include or sysconfig.get_path("include"), "Python.h")
    if not headers.is_file():
        fix = f"install the header files of Python (python3-dev, python3-devel); {only}"
        return warn("compiler", f"{path}, but no {headers}", fix)
    return ok("compiler", path)


def wandb(environ: Mapping[str, str] = os.environ) -> Finding:
    only = "only needed for metrics.enable_wandb=true with metrics.wandb_mode=online"
    found = login(environ)
    if found.source:
        return ok("W&B", f"logged in to {found.host} by {found.source}")
    return missing("W&B", f"no login to {found.host}", f"wandb login; {only}")
