"""What is said of machines that are not this one: a golden screen of every finding."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from forge.config.numbers import GIB, MIB
from forge.doctor import accelerator, limits, places
from forge.doctor.finding import Finding
from forge.doctor.places import Place, Trial

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
ENDLESS = resource.RLIM_INFINITY
ROOT = Place(name="run.root", path=Path("/p"), option="run.root=DIR", enough=10 * GIB)
HOME = Place(name="home", path=Path("/p"), option="HOME=DIR", enough=GIB, needed=False)
WROTE = Trial(folder=Path("/p"))


def report(**changes: Any) -> dict[str, Any]:
    """What the probe says of a machine with two GPUs where all is well, but for the changes."""
    return {name: value for name, value in (WELL | changes).items() if value is not None}


def cuda(environ: dict[str, str] | None = None, **changes: Any) -> Finding:
    return accelerator.cuda(report(**changes), environ or {})


def accelerators() -> list[Finding]:
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
        accelerator.nccl(report(distributed=NONE)),
        accelerator.nccl(report(**gone)),
        accelerator.gloo(report(distributed=NONE)),
        accelerator.gloo(report(**gone)),
        accelerator.gloo(report(gloo={"error": "no address"})),
        accelerator.gloo(report(gloo=None, **HANGS)),
    ]


def own_limits() -> list[Finding]:
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
        limits.open_files(1024, 4096),
        limits.open_files(ENDLESS, ENDLESS),
        limits.open_files(256, 4096),
        limits.open_files(256, ENDLESS),
        limits.open_files(256, 512),
    ]


def written_to() -> list[Finding]:
    return [
        places.judge(ROOT, Trial(folder=Path("/"), error="/p is a file"), 0),
        places.judge(ROOT, WROTE, 10 * GIB),
        places.judge(ROOT, WROTE, 9 * GIB),
        places.judge(ROOT, WROTE, GIB // 4),
        places.judge(HOME, WROTE, 0),
        places.locks(WROTE),
        places.locks(Trial(folder=Path("/nfs"))),
        places.locks(Trial(folder=Path("/p"), locks="locks do not work")),
        places.clock(Trial(folder=Path("/p"), skew=90.0)),
        places.clock(Trial(folder=Path("/p"), skew=-90.0)),
        places.shared_memory(4 * MIB, 4, 0, 64 * MIB),
        places.shared_memory(100 * MIB, 4, 0, 64 * MIB),
        places.shared_memory(0, 0, 8, 64 * MIB),
        places.shared_memory(MIB, 2, 0, None),
        places.shared_memory(0, 0, 0, None),
    ]


def mounted(folder: Path) -> tuple[str, tuple[str, ...]]:
    return ("nfs4", ("rw", "local_lock=all")) if folder == Path("/nfs") else ("ext4", ("rw",))


@pytest.mark.parametrize("screen", [accelerators, own_limits, written_to])
def test_every_finding(screen, monkeypatch: pytest.MonkeyPatch):
    """A finding that every run needs is marked by an exclamation mark."""
    monkeypatch.setattr(places, "file_system", mounted)
    monkeypatch.setattr(places.time, "strftime", lambda *_: "2027-01-15 08:00:00 UTC")
    monkeypatch.setattr(accelerator.sys, "executable", "PYTHON")
    said = "\n".join("!" * finding.needed + finding.render() for finding in screen())
    golden = Path(__file__).with_name("findings") / f"{screen.__name__}.txt"
    assert said + "\n" == golden.read_text(encoding="utf-8")
