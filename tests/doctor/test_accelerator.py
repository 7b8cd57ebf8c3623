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

CUDA_BUILD = "install a CUDA build of torch, as pytorch.org/get-started has it for this driver; "
ONLY = "only needed for run.device=cuda"
H200 = {"name": "H200", "capability": "9.0", "bf16": True, "free": 140, "total": 141}
V100 = {"name": "V100", "capability": "7.0", "bf16": False, "free": 30, "total": 32}
NVML = {"driver": "580.1", "cuda": "13.0", "devices": 2}
TORCH = {
    "version": "2.13.0+cu130",
    "file": "f",
    "cuda": "13.0",
    "hip": None,
    "cpu": "AVX2",
    "threads": 8,
}
DRIVER = "driver 580.1 (CUDA 13.0), 2 GPUs"


def report(**changes: Any) -> dict[str, Any]:
    """What the probe says of a machine with two GPUs where all is well."""
    well = {
        "doing": "starting gloo",
        "nvml": NVML,
        "torch": TORCH,
        "cuda": {"devices": [H200, H200]},
        "distributed": {"gloo": True, "nccl": True, "nccl_version": "2.29.1"},
        "gloo": {},
    }
    return {name: value for name, value in (well | changes).items() if value is not None}


def test_all_well():
    found = accelerator.findings(report(), {})
    assert [(f.check, f.status, f.fix) for f in found] == [
        (name, OK, "") for name in ("torch", "CUDA", "NCCL", "gloo")
    ]
    assert found[0].found == "2.13.0+cu130, built for CUDA 13.0; CPU kernels: AVX2"
    assert found[1].found == f"{DRIVER}; torch uses 2: H200 (capability 9.0); bf16"
    assert found[2].found == "2.29.1"


@pytest.mark.parametrize("version", ["2.10.0", "2.14.0+cpu"])
def test_a_torch_outside_the_range(version: str):
    found = accelerator.torch_itself(report(torch=TORCH | {"version": version}))
    assert (found.status, found.needed) == (MISSING, True)
    assert found.found.endswith("; forge needs <2.14,>=2.11")
    assert found.fix == f"pip install 'torch<2.14,>=2.11' in the environment of {sys.executable}"


CUDA_CASES = {
    "no driver": (
        {"nvml": {"error": "NVMLError"}, "cuda": {"devices": []}},
        MISSING,
        "no NVIDIA driver that can be asked (NVMLError)",
        f"install the driver (and nvidia-ml-py); {ONLY}",
    ),
    "a driver that hangs": (
        {"nvml": None, "torch": None, "cuda": None, "end": "no answer in 60 s"},
        WARN,
        "the NVIDIA driver does not answer: no answer in 60 s.",
        f"restart the driver or the machine; {ONLY}",
    ),
    "no torch": (
        {"torch": {"error": "x"}, "cuda": None},
        WARN,
        f"{DRIVER}; without torch no more is known",
        "see torch above",
    ),
    "torch for the CPU": (
        {"torch": TORCH | {"cuda": None}, "cuda": {"devices": []}},
        WARN,
        f"{DRIVER}, and torch is built without CUDA",
        f"{CUDA_BUILD}{ONLY}",
    ),
    "torch hangs at the GPUs": (
        {"cuda": None, "doing": "asking torch for GPUs", "end": "no answer in 60 s"},
        WARN,
        f"{DRIVER}; torch came to a stop while asking torch for GPUs: no answer in 60 s.",
        "run nvidia-smi; restart the driver",
    ),
    "no kernels for this GPU": (
        {"cuda": {"error": "AcceleratorError: no kernel image"}},
        WARN,
        f"{DRIVER}; a first computation fails: AcceleratorError: no kernel image",
        f"run nvidia-smi; {CUDA_BUILD}{ONLY}",
    ),
    "an old driver": (
        {"cuda": {"devices": [], "warning": "CUDA initialization: the driver is too old"}},
        WARN,
        f"{DRIVER}; torch sees none of them: CUDA initialization: the driver is too old",
        f"update the driver, or {CUDA_BUILD}{ONLY}",
    ),
    "one GPU in MIG mode": (
        {"cuda": {"devices": [H200]}},
        WARN,
        f"{DRIVER}; torch uses 1: H200 (capability 9.0)",
        "run nvidia-smi -L; a GPU in MIG mode or in error is left out",
    ),
    "no bf16": (
        {"cuda": {"devices": [V100, V100]}},
        WARN,
        f"{DRIVER}; torch uses 2: V100 (capability 7.0); no bf16",
        "precision=fp16 or precision=fp32; bf16 needs capability 8.0",
    ),
    "a GPU that others use": (
        {"cuda": {"devices": [H200, H200 | {"free": 3}]}},
        WARN,
        f"{DRIVER}; torch uses 2: H200 (capability 9.0); more than half of the memory of [1] is taken",
        "run nvidia-smi to see by whom",
    ),
}


@pytest.mark.parametrize(("changes", "status", "said", "fix"), CUDA_CASES.values(), ids=CUDA_CASES)
def test_cuda(changes: dict[str, Any], status: str, said: str, fix: str):
    found = accelerator.cuda(report(**changes), {})
    assert (found.status, found.found, found.fix, found.needed) == (status, said, fix, False)


def test_hidden_gpus():
    hidden = accelerator.cuda(report(cuda={"devices": []}), {"CUDA_VISIBLE_DEVICES": ""})
    assert (hidden.status, hidden.fix) == (WARN, "unset CUDA_VISIBLE_DEVICES to use them")
    assert hidden.found == f"{DRIVER}; CUDA_VISIBLE_DEVICES= hides them all"
    assert (
        accelerator.cuda(report(cuda={"devices": [H200]}), {"CUDA_VISIBLE_DEVICES": "0"}).status
        == OK
    )


def test_nccl():
    none = accelerator.nccl(report(distributed={"gloo": True, "nccl": False, "nccl_version": None}))
    assert (none.status, none.needed, none.fix) == (
        MISSING,
        False,
        f"{CUDA_BUILD}only needed for several GPUs",
    )
    failed = accelerator.nccl(report(torch={"error": "ImportError: x"}, distributed=None))
    assert (failed.found, failed.fix) == (
        "torch does not say (ImportError: x)",
        "see torch above; only needed for several GPUs",
    )


def test_gloo():
    failed = accelerator.gloo(report(gloo={"error": "RuntimeError: no address"}))
    assert (failed.status, failed.needed) == (MISSING, False)
    assert failed.found == "a group of one rank cannot be started: RuntimeError: no address"
    assert failed.fix.startswith(
        "give this host's name an address in /etc/hosts, or set GLOO_SOCKET_IFNAME"
    )
    assert (
        accelerator.gloo(report(distributed={"gloo": False, "nccl": True})).found
        == "this build of torch has none"
    )
    assert (
        accelerator.gloo(report(gloo=None, end="no answer in 60 s")).found
        == "torch does not say (no answer in 60 s)"
    )


def test_the_probe_of_this_machine():
    said = accelerator.probe()
    assert "end" not in said
    assert said["torch"]["version"] == torch.__version__
    assert said["torch"]["cuda"] == torch.version.cuda
    assert len(said["cuda"]["devices"]) == torch.cuda.device_count()
    assert said["gloo"] == {}
    assert accelerator.torch_itself(said).status == OK


BROKEN = {
    "no module of its own": (
        "import not_there\n",
        "it cannot be imported: ModuleNotFoundError: No module named 'not_there'",
    ),
    "a missing library": (
        "raise ImportError('libcudart.so.13: cannot open shared object file')\n",
        "it cannot be imported: ImportError: libcudart.so.13: cannot open shared object file",
    ),
    "an exit": ("import sys; sys.exit('no')\n", "it cannot be imported: SystemExit: no"),
    "a crash": (
        "import os, sys; sys.stderr.write('bad\\n'); sys.stderr.flush(); os.abort()\n",
        "the process that imports torch came to a stop while importing torch: ended with -6: bad.",
    ),
    "an empty folder": (
        "",
        "it cannot be imported: AttributeError: module 'torch' has no attribute '__version__'",
    ),
}


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def put(text: str) -> None:
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    return put


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_torch(fake_torch, text: str, said: str):
    fake_torch(text)
    found, _, nccl, gloo = accelerator.findings(accelerator.probe())
    assert (found.status, found.needed, found.found) == (MISSING, True, said)
    assert f"pip install 'torch<2.14,>=2.11' in the environment of {sys.executable}" in found.fix
    assert (nccl.status, gloo.status) == (MISSING, MISSING)


def test_a_torch_that_hangs(fake_torch):
    fake_torch("import time; print('noise', flush=True); time.sleep(60)\n")
    found = accelerator.torch_itself(accelerator.probe(seconds=3))
    assert (
        found.found
        == "the process that imports torch came to a stop while importing torch: no answer in 3 s."
    )
    assert found.fix.startswith(f"try `{sys.executable} -c 'import torch'`; ")


def test_a_python_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accelerator.sys, "executable", "/no/python")
    found = accelerator.torch_itself(accelerator.probe())
    assert (
        found.found
        == "the process that imports torch came to a stop while starting: could not be started."
    )
