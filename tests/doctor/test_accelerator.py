"""torch, CUDA, NCCL and gloo: the probe on this machine, with broken torches in its place, and the
judgement of what it may say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.doctor import accelerator
from forge.doctor.finding import MISSING, OK, WARN

ONLY = "only needed for run.device=cuda"
INSTALL = f"install {accelerator.CUDA_BUILD}"
PIP = f"pip install 'torch<2.14,>=2.11' in the environment of {sys.executable}"
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
DRIVER = "driver 580.1 (CUDA 13.0), 2 GPUs"


def report(**changes: Any) -> dict[str, Any]:
    """What the probe says of a machine with two GPUs where all is well, but for the changes."""
    return {name: value for name, value in (WELL | changes).items() if value is not None}


def test_all_well():
    found = accelerator.findings(report(), {})
    assert [(f.check, f.status, f.found, f.fix) for f in found] == [
        ("torch", OK, "2.13.0+cu130, built for CUDA 13.0; CPU kernels: AVX2", ""),
        ("CUDA", OK, f"{DRIVER}; torch uses 2: H200 (capability 9.0); bf16", ""),
        ("NCCL", OK, "2.29.1", ""),
        ("gloo", OK, "a group of one rank starts", ""),
    ]


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0+cpu"])
def test_a_torch_outside_the_range(version: str):
    found = accelerator.torch(report(torch=TORCH | {"version": version}))
    assert (found.status, found.needed, found.fix) == (MISSING, True, PIP)
    assert found.found.endswith("; forge needs <2.14,>=2.11")


HANGS = {"end": "no answer in 60 s"}
CASES = {
    "no driver": (
        {"nvml": {"error": "NVMLError"}, "cuda": {"devices": []}},
        "no NVIDIA driver that can be asked (NVMLError)",
        f"install the driver (and nvidia-ml-py); {ONLY}",
    ),
    "a driver that hangs": (
        {"nvml": None, "torch": None, "cuda": None, **HANGS},
        "the NVIDIA driver does not answer: no answer in 60 s.",
        f"restart the driver or the machine; {ONLY}",
    ),
    "no torch": (
        {"torch": {"error": "x"}, "cuda": None},
        f"{DRIVER}; without torch no more is known",
        "see torch above",
    ),
    "torch for the CPU": (
        {"torch": TORCH | {"cuda": None}, "cuda": {"devices": []}},
        f"{DRIVER}, and torch is built without CUDA",
        f"{INSTALL}{ONLY}",
    ),
    "torch hangs at the GPUs": (
        {"cuda": None, "doing": "asking torch for GPUs", **HANGS},
        f"{DRIVER}; torch came to a stop while asking torch for GPUs: no answer in 60 s.",
        "run nvidia-smi; restart the driver",
    ),
    "no kernels for this GPU": (
        {"cuda": {"error": "no kernel image"}},
        f"{DRIVER}; a first computation fails: no kernel image",
        f"run nvidia-smi; {INSTALL}{ONLY}",
    ),
    "an old driver": (
        {"cuda": {"devices": [], "warning": "the driver is too old"}},
        f"{DRIVER}; torch sees none of them: the driver is too old",
        f"update the driver, or {INSTALL}{ONLY}",
    ),
    "one GPU in MIG mode": (
        {"cuda": {"devices": [H200]}},
        f"{DRIVER}; torch uses 1: H200 (capability 9.0)",
        "run nvidia-smi -L; a GPU in MIG mode or in error is left out",
    ),
    "no bf16": (
        {"cuda": {"devices": [V100, V100]}},
        f"{DRIVER}; torch uses 2: V100 (capability 7.0); no bf16",
        "precision=fp16 or precision=fp32; bf16 needs capability 8.0",
    ),
    "a GPU that others use": (
        {"cuda": {"devices": [H200, H200 | {"free": 3}]}},
        f"{DRIVER}; torch uses 2: H200 (capability 9.0); more than half of the memory of [1] is "
        "taken",
        "run nvidia-smi to see by whom",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_cuda(case: str):
    changes, said, fix = CASES[case]
    found = accelerator.cuda(report(**changes), {})
    status = MISSING if case == "no driver" else WARN
    assert (found.status, found.found, found.fix, found.needed) == (status, said, fix, False)


def test_hidden_gpus():
    none, hidden = report(cuda={"devices": []}), {"CUDA_VISIBLE_DEVICES": ""}
    found = accelerator.cuda(none, hidden)
    assert (found.status, found.fix) == (WARN, "unset CUDA_VISIBLE_DEVICES to use them")
    assert found.found == f"{DRIVER}; CUDA_VISIBLE_DEVICES= hides them all"
    one = report(cuda={"devices": [H200]})
    assert accelerator.cuda(one, {"CUDA_VISIBLE_DEVICES": "0"}).status == OK


def test_nccl_and_gloo():
    none = {"distributed": {"gloo": False, "nccl": False, "nccl_version": None}}
    broken = {"torch": {"error": "ImportError: x"}, "distributed": None}
    found = accelerator.nccl(report(**none))
    assert (found.status, found.needed) == (MISSING, False)
    assert found.fix == f"{INSTALL}only needed for several GPUs"
    assert accelerator.gloo(report(**none)).found == "this build of torch has none"
    for judge in (accelerator.nccl, accelerator.gloo):
        found = judge(report(**broken))
        assert found.found == "torch does not say (ImportError: x)"
        assert found.fix.startswith("see torch above; only needed for several ")
    failed = accelerator.gloo(report(gloo={"error": "RuntimeError: no address"}))
    assert failed.found == "a group of one rank cannot be started: RuntimeError: no address"
    assert failed.fix.startswith("give this host's name an address in /etc/hosts, or set GLOO_")
    hangs = accelerator.gloo(report(gloo=None, **HANGS))
    assert hangs.found == "torch does not say (no answer in 60 s)"


def test_the_probe_of_this_machine():
    said = accelerator.probe()
    assert "end" not in said
    assert (said["torch"]["version"], said["gloo"]) == (torch.__version__, {})
    assert said["torch"]["cuda"] == torch.version.cuda
    assert len(said["cuda"]["devices"]) == torch.cuda.device_count()
    assert accelerator.torch(said).status == OK


STOPPED = "the process that imports torch came to a stop while"
BROKEN = {
    "import not_there": "it cannot be imported: ModuleNotFoundError: No module named 'not_there'",
    "raise ImportError('no libcudart')": "it cannot be imported: ImportError: no libcudart",
    "import sys; sys.exit('no')": "it cannot be imported: SystemExit: no",
    "import os; os.write(2, b'bad'); os.abort()": f"{STOPPED} importing torch: ended with -6: bad.",
    "import time; print('x', flush=True); time.sleep(60)": f"{STOPPED} importing torch: no answer "
    "in 3 s.",
    "": "it cannot be imported: AttributeError: module 'torch' has no attribute '__version__'",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_torch(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found, _, nccl, gloo = accelerator.findings(
        accelerator.probe(seconds=3 if "sleep" in text else 60)
    )
    assert (found.status, found.needed, found.found) == (MISSING, True, BROKEN[text])
    assert PIP in found.fix
    assert (nccl.status, gloo.status) == (MISSING, MISSING)


def test_a_python_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerator.sys, "executable", "/no/python")
    found = accelerator.torch(accelerator.probe())
    assert found.found == f"{STOPPED} starting: could not be started."
