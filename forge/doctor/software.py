"""Python, packages, Slurm's commands, git, a compiler, and the login to W&B."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from forge.config.optimizers.compiler import c_compiler, compiler_fault
from forge.config.wandb_login import login
from forge.doctor.finding import Finding, missing, ok, run_program, warn

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
"""Requirements without a use in a plain run on the CPU, and their purposes."""
COMPILERS = ("c++", "g++", "clang++")
SLURM = ("sinfo", "sbatch", "srun", "sacct")


def python() -> Finding:
    kind = platform.python_implementation()
    return ok("Python", f"{platform.python_version()} ({kind}) at {sys.executable}")


def requirements() -> dict[str, str]:
    """Name and versions, for example '<2.14,>=2.11', of forge's requirements, without extras."""
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    plain = (text for text in texts if "extra ==" not in text)
    matches = [re.match(r"([\w.-]+)[^;<>=!~]*([^;]*)", text) for text in plain]
    return {match[1]: match[2].strip() for match in matches if match}


def outside(version: str, wanted: str) -> bool:
    """Whether a version is outside of a range; a pre-release counts as its release."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version
    except ImportError:
        return False
    return bool(wanted) and not SpecifierSet(wanted).contains(Version(version).base_version)


def packages() -> list[Finding]:
    """A finding for all good packages, and a finding for each bad package; torch is checked
    apart.
    """
    required = {name: versions for name, versions in requirements().items() if name != "torch"}
    if not required:
        status = f"{DISTRIBUTION} is not installed here, so its requirements are not known"
        return [warn("packages", status, "pip install -e . in a checkout")]
    bad = []
    for name, versions in required.items():
        try:
            status = metadata.version(name)
            if not outside(status, versions):
                continue
            status += f"; forge needs {versions}"
        except metadata.PackageNotFoundError:
            status = "not installed"
        only = f"; only needed for {OPTIONAL[name]}" if name in OPTIONAL else ""
        hint = f"pip install '{name}{versions}'{only}"
        bad.append(missing(name, status, hint, needed=not only))
    good = f"{len(required) - len(bad)} of {len(required)}"
    return [ok("packages", f"{good} that forge requires are there, in versions it takes"), *bad]


def slurm(seconds: float = 5.0) -> Finding:
    """Check Slurm: sinfo must name a partition; without sacct squeue alone tells the end of a
    job.
    """
    only = "only needed for launch=slurm"
    paths = {name: path for name in SLURM if (path := shutil.which(name))}
    absent = ", ".join(name for name in SLURM if name not in paths)
    if not paths:
        hint = f"{only}: use a login node, or load the site's slurm module"
        return missing("Slurm", f"no {absent} on PATH", hint)
    if absent:
        hint = f"install the rest of Slurm's client commands; {only}"
        return warn("Slurm", f"{', '.join(paths)} on PATH, but no {absent}", hint)
    silent, ask_for_help = f"no answer in {seconds:g} s", f"ask the administrator; {only}"
    answer = run_program([paths["sinfo"], "--noheader", "--format=%P"], seconds=seconds)
    if answer is None or answer.code is None:
        message = f"sinfo gives {silent}: the controller is down or cannot be reached"
        return warn("Slurm", message, ask_for_help)
    if answer.code:
        return warn("Slurm", f"sinfo fails: {answer.last_line}", f"check SLURM_CONF; {only}")
    partitions = dict.fromkeys(answer.out.split())
    if not partitions:
        return warn("Slurm", "sinfo lists no partition that you may use", ask_for_help)
    summary = f"partitions: {', '.join(partitions)}"
    sacct = [paths["sacct"], "--noheader", "--allocations", "--starttime=now"]
    records = run_program(sacct, seconds=seconds)
    if records and records.code == 0:
        return ok("Slurm", summary)
    why = records.last_line if records and records.code else silent
    hint = "the end of a job is then learned from squeue, a few minutes at most after it"
    return warn("Slurm", f"{summary}; sacct fails: {why}", hint)


def git() -> Finding:
    """Check git and its reading of the checkout; a run notes the revision of its code."""
    hint = "only needed for the revision and the diff in a run's provenance"
    path, root = shutil.which("git"), Path(__file__).resolve().parents[2]
    if path is None:
        return missing("git", "there is no git on PATH", f"install git; {hint}")
    answer = run_program([path, "-C", str(root), "rev-parse", "--short", "HEAD"], seconds=5)
    if answer is None or answer.code is None:
        return warn("git", f"{path} does not answer", hint)
    if "dubious ownership" in answer.err:
        message = f"it refuses to read {root}, which belongs to another user"
        return warn("git", message, f"git config --global --add safe.directory {root}")
    revision = f"revision {answer.out.strip()}"
    return ok("git", f"{path}; {'forge is not run from a checkout' if answer.code else revision}")


def compiler(environ: Mapping[str, str] = os.environ, include: str | None = None) -> Finding:
    """Check the needs of torch.compile: compilers of C++ (for CPUs) and of C (for launching kernels
    on GPUs), and the header files of Python.
    """
    only = "only needed for train.compile_model=true"
    names = [environ["CXX"]] if environ.get("CXX") else COMPILERS
    paths = (shutil.which(name, path=environ.get("PATH")) for name in names)
    path = next(filter(None, paths), None)
    if path is None:
        hint = f"install g++ or clang++, or set CXX; {only}"
        return missing("compiler", f"no C++ compiler: {', '.join(names)} not found", hint)
    if fault := compiler_fault(environ, include):
        packages = "gcc, or set CC" if c_compiler(environ) is None else "python3-dev, python3-devel"
        hint = f"install it ({packages}); {only}, and for fast updates of AdamW on GPUs"
        return warn("compiler", f"{path}, but {fault}", hint)
    return ok("compiler", path)


def wandb(environ: Mapping[str, str] = os.environ) -> Finding:
    only = "only needed for metrics.enable_wandb=true with metrics.wandb_mode=online"
    credentials = login(environ)
    if credentials.source:
        return ok("W&B", f"logged in to {credentials.host} by {credentials.source}")
    return missing("W&B", f"no login to {credentials.host}", f"wandb login; {only}")
