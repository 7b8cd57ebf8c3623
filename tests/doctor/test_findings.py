"""What is said of machines that are not this one: a golden screen of every finding."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.config.numbers import GIB, MIB
from forge.doctor import accelerator, limits, places, software
from forge.doctor.finding import Finding

H200 = {"name": "H200", "capability": "9.0", "bf16": True, "free": 140, "total": 141}
V100 = {"name": "V100", "capability": "7.0", "bf16": False, "free": 30, "total": 32}
TORCH = {"version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "cpu": "AVX2", "threads": 8}
WELL = {
    "doing": "starting gloo",
    "nvml": {"driver": "580.1", "cuda": "13.0", "devices": 2},
    "torch": TORCH,
    "cuda": {"devices": [H200, H200]},
    "distributed": {"gloo": True, "nccl": True, "nccl_version": "2.29.1"},
    "gloo": {},
}
NONE = {"gloo": False, "nccl": False, "nccl_version": None}
HANGS = {"end": "no answer in 60 s"}


def report(**changes: Any) -> dict[str, Any]:
    """What the probe says of a machine with two GPUs where all is well, but for the changes."""
    return {name: value for name, value in (WELL | changes).items() if value is not None}


def cuda(environ: dict[str, str] | None = None, **changes: Any) -> Finding:
    return accelerator.cuda(report(**changes), environ or {})


def accelerators(*_: object) -> list[Finding]:
    gone = {"torch": {"error": "x"}, "distributed": None}
    return [
        *accelerator.findings(report(), {}),
        accelerator.torch(report(torch=TORCH | {"version": "2.14.0"})),
        cuda(nvml={"error": "NVMLError"}, cuda={"devices": []}),
        cuda(nvml=None, torch=None, cuda=None, **HANGS),
        cuda(torch={"error": "x"}, cuda=None),
        cuda(torch=TORCH | {"cuda": None}, cuda={"devices": []}),
        cuda(cuda=None, doing="asking torch for GPUs", **HANGS),
        cuda(cuda={"error": "no kernel image"}),
        cuda(cuda={"devices": [], "warning": "the driver is too old"}),
        cuda({"CUDA_VISIBLE_DEVICES": ""}, cuda={"devices": []}),
        cuda({"CUDA_VISIBLE_DEVICES": "0"}, cuda={"devices": [H200]}),
        cuda(cuda={"devices": [H200]}),
        cuda(cuda={"devices": [V100, V100]}),
        cuda(cuda={"devices": [H200, H200 | {"free": 3}]}),
        *accelerator.mps(report(torch=TORCH | {"mps": True})),
        *accelerator.mps(report(torch=TORCH | {"mps": False})),
        *accelerator.backends(report(distributed=NONE)),
        *accelerator.backends(report(**gone)),
        *accelerator.backends(report(gloo={"error": "no address"})),
        *accelerator.backends(report(gloo=None, **HANGS)),
    ]


def own_limits(*_: object) -> list[Finding]:
    one = {"OMP_NUM_THREADS": "1"}
    return [
        limits.threads(8, 64, 8, 0, {}),
        limits.threads(8, 64, 4, 0, {"OMP_NUM_THREADS": "4"}),
        limits.threads(8, 64, None, 0, {}),
        limits.threads(8, 64, 64, 8, {}),
        limits.threads(2, 64, 64, 0, {}),
        limits.threads(2, 64, 2, 3, {}),
        limits.threads(8, 64, 1, 0, one),
        limits.threads(8, 64, 8, 1, one),
        limits.memory(16 * GIB, None),
        limits.memory(16 * GIB, 8 * GIB),
        limits.memory(GIB, None),
        limits.memory(16 * GIB, GIB // 4),
        limits.memory(None, None),
    ]


def written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """There, not there yet, behind a file, and locks that are refused or without effect."""
    (folder / "file").touch()

    def root(path: Path, free: int) -> Finding:
        monkeypatch.setattr(places, "free_bytes", lambda _: free)
        return places.check_place("run.root", path, "run.root=DIR", 10 * GIB)

    found = [
        root(folder / "file" / "runs", 0),
        root(folder, 10 * GIB),
        root(folder / "a" / "b", 9 * GIB),
        root(folder, 0),
        places.check_place("home", folder, "HOME=DIR", GIB, needed=False),
        places.locks(folder / "a"),
        places.shared_memory(4 * MIB, 4, 0, 64 * MIB),
        places.shared_memory(100 * MIB, 4, 0, 64 * MIB),
        places.shared_memory(0, 0, 8, 64 * MIB),
        places.shared_memory(MIB, 2, 0, None),
        places.shared_memory(0, 0, 0, None),
    ]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for flock in (refuse, lambda *_: None):
        monkeypatch.setattr("fcntl.flock", flock)
        found.append(places.locks(folder))
    assert [path.name for path in folder.iterdir()] == ["file"]
    return found


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Slurm, git, a compiler and W&B: absent, badly set up, and well."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(software, "SLURM", ("sinfo", "sacct"))
    monkeypatch.setattr(software, "__file__", str(folder / "forge" / "doctor" / "software.py"))

    def program(name: str, text: str = "exit 0") -> None:
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        (folder / name).chmod(0o755)

    def slurm(sinfo: str, sacct: str = "exit 0") -> Finding:
        program("sinfo", sinfo)
        program("sacct", sacct)
        return software.slurm(seconds=1)

    def git(text: str) -> Finding:
        program("git", text)
        return software.git()

    here, home = {"PATH": str(folder)}, {"HOME": str(folder)}
    found = [software.slurm(), software.git(), software.compiler(here), software.wandb(home)]
    program("sinfo")
    found.append(software.slurm())
    program("clang++")
    found.append(software.compiler(here, include=str(folder)))
    program("gcc")
    found.append(software.compiler(here, include=str(folder)))
    (folder / "Python.h").touch()
    partitions = "echo 'gpu*'; echo cpu; echo 'gpu*'"
    return [
        *found,
        software.compiler(here, include=str(folder)),
        software.compiler({**here, "CXX": "icpx"}),
        software.wandb({**home, "WANDB_API_KEY": "secret"}),
        slurm(partitions),
        slurm("sleep 30"),
        slurm("echo 'Unable to contact slurm controller' >&2; exit 1"),
        slurm("exit 0"),
        slurm(partitions, "echo 'storage is disabled' >&2; exit 1"),
        slurm(partitions, "sleep 30"),
        git("echo 1234abc"),
        git("echo 'fatal: not a git repository' >&2; exit 128"),
        git("echo 'fatal: detected dubious ownership' >&2; exit 128"),
    ]


@pytest.mark.parametrize("screen", [accelerators, own_limits, written_to, programs])
def test_every_finding(
    screen: Callable[..., list[Finding]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A finding that every run needs is marked by an exclamation mark."""
    monkeypatch.setattr(places, "mount", lambda _: ("ext4", ["rw"]))
    monkeypatch.setattr(accelerator.sys, "executable", "PYTHON")
    found = screen(tmp_path, monkeypatch)
    said = "\n".join("!" * finding.needed + finding.render() for finding in found)
    golden = Path(__file__).with_name("findings") / f"{screen.__name__}.txt"
    assert said.replace(str(tmp_path), "/p") + "\n" == golden.read_text(encoding="utf-8")
