"""The probe of torch on this machine, and with broken torches in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from forge.doctor import accelerator
from forge.doctor.finding import MISSING, OK

PIP = f"pip install 'torch<2.14,>=2.11' in the environment of {sys.executable}"


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
