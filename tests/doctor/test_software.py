"""Python, packages, git, compiler and W&B: well, badly set up and missing, each with its fix."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from forge.doctor import software
from forge.doctor.ask import Answer
from forge.doctor.finding import MISSING, OK, WARN


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_python():
    assert software.python((3, 11, 0)).status == OK
    found = software.python((3, 10, 4))
    assert (found.status, found.needed) == (MISSING, True)
    assert found.found.startswith("3.10.4 ")
    assert found.fix == "forge needs 3.11 or newer: make a new virtual environment"


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
    from configparser import ConfigParser

    setup = ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")[1:]
    wanted = {
        name: set(filter(None, versions.split(",")))
        for name, _, versions in (line.partition(" ") for line in lines)
    }
    assert {
        name: set(filter(None, versions.split(",")))
        for name, versions in software._requirements().items()
    } == wanted
    assert set(software.OPTIONAL) < set(wanted)


def test_packages_here_are_well():
    (found,) = software.packages()
    assert found.status == OK
    assert found.found.startswith("15 of 15 ")


def test_packages_that_are_not(monkeypatch: pytest.MonkeyPatch):
    installed = {"hydra-core": "1.2.0", "numpy": "2.4.6", "tokenizers": "0.22"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    required = [
        "torch<2.14,>=2.11",
        "hydra-core<1.4,>=1.3.8",
        "numpy",
        "rich",
        "wandb",
        "pyright[nodejs]; extra == 'dev'",
        "tokenizers",
    ]
    monkeypatch.setattr(software.metadata, "requires", lambda name: required)
    monkeypatch.setattr(software.metadata, "version", version)
    well, hydra, rich, wandb = software.packages()
    assert well.found == "2 of 5 that forge requires are there, in versions it takes"
    assert (hydra.check, hydra.status, hydra.needed, hydra.found) == (
        "hydra-core",
        MISSING,
        True,
        "1.2.0; forge needs <1.4,>=1.3.8",
    )
    assert hydra.fix == "pip install 'hydra-core<1.4,>=1.3.8'"
    assert (rich.status, rich.needed, rich.found, rich.fix) == (
        MISSING,
        True,
        "not installed",
        "pip install 'rich'",
    )
    assert (wandb.status, wandb.needed) == (MISSING, False)
    assert wandb.fix == "pip install 'wandb'; only needed for metrics.enable_wandb=true"


def test_forge_itself_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software.metadata, "requires", requires)
    (found,) = software.packages()
    assert (found.status, found.fix) == (WARN, "pip install -e . in a checkout")
    assert software.requirement("torch") == ""


def test_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = software.git()
    assert (found.status, found.needed, found.found) == (MISSING, False, "there is no git on PATH")
    assert (
        found.fix == "install git; only needed for the revision and the diff in a run's provenance"
    )
    program(tmp_path, "git", "echo 1234abc")
    assert software.git().found.endswith("; revision 1234abc")
    program(tmp_path, "git", "echo 'fatal: not a git repository' >&2; exit 128")
    assert (software.git().status, software.git().found.rpartition("; ")[2]) == (
        OK,
        "forge is not run from a checkout",
    )
    program(
        tmp_path,
        "git",
        "echo \"fatal: detected dubious ownership in repository at '/x'\" >&2; exit 128",
    )
    root = Path(__file__).resolve().parents[2]
    assert (software.git().status, software.git().fix) == (
        WARN,
        f"git config --global --add safe.directory {root}",
    )
    monkeypatch.setattr(software, "ask", lambda *_, **__: Answer(code=None, out="", err=""))
    assert (software.git().status, software.git().found) == (
        WARN,
        f"{tmp_path}/git does not answer",
    )


def test_compiler(tmp_path: Path):
    only = "only needed for train.compile_model=true"
    found = software.compiler({"PATH": str(tmp_path)})
    assert (found.status, found.needed) == (MISSING, False)
    assert found.found == "no C++ compiler: c++, g++, clang++ not found"
    assert found.fix == f"install g++ or clang++, or set CXX; {only}"
    path = program(tmp_path, "clang++")
    found = software.compiler({"PATH": str(tmp_path)}, include=str(tmp_path))
    assert (found.status, found.found) == (WARN, f"{path}, but no {tmp_path}/Python.h")
    assert found.fix == f"install the header files of Python (python3-dev, python3-devel); {only}"
    (tmp_path / "Python.h").touch()
    assert software.compiler({"PATH": str(tmp_path)}, include=str(tmp_path)).status == OK
    assert (
        software.compiler({"PATH": str(tmp_path), "CXX": "icpx"}).found
        == "no C++ compiler: icpx not found"
    )


def test_wandb(tmp_path: Path):
    only = "only needed for metrics.enable_wandb=true with metrics.wandb_mode=online"
    home = {"HOME": str(tmp_path)}
    found = software.wandb(home)
    assert (found.status, found.needed, found.fix) == (MISSING, False, f"wandb login; {only}")
    assert (
        software.wandb({**home, "WANDB_API_KEY": "secret"}).found
        == "logged in to api.wandb.ai by WANDB_API_KEY"
    )
    file = tmp_path / ".netrc"
    file.write_text("machine api.wandb.ai login user password secret\n")
    file.chmod(0o600)
    found = software.wandb(home)
    assert (found.status, found.found) == (OK, f"logged in to api.wandb.ai by {file}")
    assert (
        software.wandb({**home, "WANDB_BASE_URL": "https://wandb.mine.org:8080/x"}).found
        == "no login to wandb.mine.org"
    )
    file.write_text("nonsense\n")
    assert (software.wandb(home).status, software.wandb(home).fix) == (
        WARN,
        f"correct the file; {only}",
    )
    assert (
        software.wandb({"NETRC": str(tmp_path)}).found
        == f"{tmp_path} cannot be read: Is a directory"
    )


def test_the_programs_of_these_tests_are_real(tmp_path: Path):
    assert subprocess.run([program(tmp_path, "x", "exit 7")]).returncode == 7
