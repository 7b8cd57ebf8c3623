"""Asking programs; packages, Slurm's commands, git, compiler and W&B: well, badly set up and
missing, each with its fix.
"""

from __future__ import annotations

import sys
import time
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest

from forge.doctor import software
from forge.doctor.finding import MISSING, OK, WARN, Answer, ask

ROOT = Path(__file__).resolve().parents[2]


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def python(code: str, seconds: float = 20) -> Answer | None:
    return ask([sys.executable, "-c", code], seconds=seconds)


def test_what_a_program_says():
    """Also more than a pipe holds, of one that crashes, and of one that is not there."""
    answer = python("import sys; print('out'); print('one\\ntwo', file=sys.stderr); sys.exit(3)")
    assert answer == Answer(code=3, out="out\n", err="one\ntwo\n")
    assert answer.last_line == "two"
    answer = python("import os, sys; sys.stderr.write('e' * 300_000); os.kill(os.getpid(), 11)")
    assert answer == Answer(code=-11, out="", err="e" * 300_000)
    assert ask(["/no/such/program"], seconds=1) is None


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ("import time; print('before', flush=True); time.sleep(60)", "before\n"),
        ("import os, time; os.close(1); os.close(2); time.sleep(60)", ""),
        ("import subprocess; subprocess.run(['sleep', '60'])", ""),
    ],
)
def test_a_program_that_hangs(code: str, out: str):
    start = time.monotonic()
    assert python(code, seconds=1) == Answer(code=None, out=out, err="")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("version", "wanted", "is_outside"),
    [
        ("2.11.0", "<2.14,>=2.11", False),
        ("2.13.1+cu130", "<2.14,>=2.11", False),
        ("2.13.0a0+gitabc", "<2.14,>=2.11", False),
        ("2.14.0", "<2.14,>=2.11", True),
        ("2.10.9", "<2.14,>=2.11", True),
        ("0.0.1", "", False),
    ],
)
def test_versions(version: str, wanted: str, is_outside: bool):
    assert software.outside(version, wanted) is is_outside


def test_requirements_are_those_of_setup_cfg():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")[1:]
    wanted = {name: set(rest.split(",")) for name, _, rest in (x.partition(" ") for x in lines)}
    found = {name: set(versions.split(",")) for name, versions in software.requirements().items()}
    assert found == wanted
    assert set(software.OPTIONAL) < set(wanted)
    (well,) = software.packages()
    assert (well.status, well.found.split()[0]) == (OK, str(len(wanted) - 1))


def test_packages_that_are_not_well(monkeypatch: pytest.MonkeyPatch):
    installed = {"hydra-core": "1.2.0", "numpy": "2.4.6", "tokenizers": "0.22"}
    required = ["torch<2.14,>=2.11", "hydra-core<1.4,>=1.3.8", "numpy", "rich", "wandb"]
    required += ["pyright[nodejs]; extra == 'dev'", "tokenizers"]

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(software.metadata, "requires", lambda name: required)
    monkeypatch.setattr(software.metadata, "version", version)
    assert [finding.render() for finding in software.packages()] == [
        "packages       ok       2 of 5 that forge requires are there, in versions it takes",
        "hydra-core     missing  1.2.0; forge needs <1.4,>=1.3.8\n"
        "                        -> pip install 'hydra-core<1.4,>=1.3.8'",
        "rich           missing  not installed\n                        -> pip install 'rich'",
        "wandb          missing  not installed\n"
        "                        -> pip install 'wandb'; only needed for metrics.enable_wandb=true",
    ]
    assert [finding.needed for finding in software.packages()] == [False, True, True, False]
    monkeypatch.setattr(software.metadata, "requires", version)
    (found,) = software.packages()
    assert (found.status, found.fix) == (WARN, "pip install -e . in a checkout")


PARTITIONS = "echo 'gpu* up 4'; echo 'cpu up 9'; echo 'gpu* up 1'"
SLURM = {  # what sinfo and sacct do, what is found, and the fix
    "all well": (PARTITIONS, "exit 0", "partitions: gpu*, cpu", ""),
    "hangs": (
        "sleep 30",
        "exit 0",
        "sinfo gives no answer in 1 s: the controller is down or cannot be reached",
        "ask the administrator; only needed for launch=slurm",
    ),
    "no controller": (
        "echo 'Unable to contact slurm controller' >&2; exit 1",
        "exit 0",
        "sinfo fails: Unable to contact slurm controller",
        "check SLURM_CONF; only needed for launch=slurm",
    ),
    "no partition": (
        "exit 0",
        "exit 0",
        "sinfo lists no partition that you may use",
        "ask the administrator; only needed for launch=slurm",
    ),
    "no accounting": (
        PARTITIONS,
        "echo 'storage is disabled' >&2; exit 1",
        "partitions: gpu*, cpu; sacct fails: storage is disabled",
        "the end of a job is then learned from squeue, a few minutes at most after it",
    ),
    "accounting hangs": (
        PARTITIONS,
        "sleep 30",
        "partitions: gpu*, cpu; sacct fails: no answer in 1 s",
        "the end of a job is then learned from squeue, a few minutes at most after it",
    ),
}


@pytest.mark.parametrize("case", SLURM)
def test_slurm(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sinfo, sacct, said, fix = SLURM[case]
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, text in {**dict.fromkeys(software.SLURM, ""), "sinfo": sinfo, "sacct": sacct}.items():
        program(tmp_path, name, text)
    found = software.slurm(seconds=1)
    assert (found.status, found.found, found.fix) == (WARN if fix else OK, said, fix)


def test_slurm_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    only = "only needed for launch=slurm"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = software.slurm()
    assert (found.status, found.found) == (MISSING, "no sinfo, sbatch, srun, sacct on PATH")
    assert found.fix == f"{only}: use a login node, or load the site's slurm module"
    for name in ("sinfo", "sbatch", "srun"):
        program(tmp_path, name)
    found = software.slurm()
    assert (found.status, found.found) == (WARN, "sinfo, sbatch, srun on PATH, but no sacct")
    assert found.fix == f"install the rest of Slurm's client commands; {only}"


def test_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = software.git()
    assert (found.status, found.found) == (MISSING, "there is no git on PATH")
    program(tmp_path, "git", "echo 1234abc")
    assert software.git().found.endswith("; revision 1234abc")
    program(tmp_path, "git", "echo 'fatal: not a git repository' >&2; exit 128")
    assert software.git().found.endswith("; forge is not run from a checkout")
    program(tmp_path, "git", "echo 'fatal: detected dubious ownership' >&2; exit 128")
    fix = f"git config --global --add safe.directory {ROOT}"
    assert (software.git().status, software.git().fix) == (WARN, fix)
    monkeypatch.setattr(software, "ask", lambda *_, **__: Answer(code=None, out="", err=""))
    assert software.git().found == f"{tmp_path}/git does not answer"


def test_compiler(tmp_path: Path):
    only, here = "only needed for train.compile_model=true", {"PATH": str(tmp_path)}
    found = software.compiler(here)
    assert (found.status, found.needed) == (MISSING, False)
    assert found.found == "no C++ compiler: c++, g++, clang++ not found"
    assert found.fix == f"install g++ or clang++, or set CXX; {only}"
    path = program(tmp_path, "clang++")
    found = software.compiler(here, include=str(tmp_path))
    assert (found.status, found.found) == (WARN, f"{path}, but no {tmp_path}/Python.h")
    assert found.fix == f"install the header files of Python (python3-dev, python3-devel); {only}"
    (tmp_path / "Python.h").touch()
    assert software.compiler(here, include=str(tmp_path)).status == OK
    other = software.compiler({**here, "CXX": "icpx"})
    assert other.found == "no C++ compiler: icpx not found"


def test_wandb(tmp_path: Path):
    only = "only needed for metrics.enable_wandb=true with metrics.wandb_mode=online"
    home = {"HOME": str(tmp_path)}
    found = software.wandb(home)
    assert (found.status, found.needed, found.fix) == (MISSING, False, f"wandb login; {only}")
    found = software.wandb({**home, "WANDB_API_KEY": "secret"})
    assert (found.status, found.found) == (OK, "logged in to api.wandb.ai by WANDB_API_KEY")
