"""The kernels of flash-linear-attention, by Triton's interpreter, through forge's operator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fake_gpu import case as fake

HAS_KERNELS = any((fake.ENVIRONMENT / "lib").glob("python3.*/site-packages/fla_core*"))
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not HAS_KERNELS, reason="no fla-core in .venv-cuda: make cuda installs it"),
]


def test_the_kernels_compute_the_rule_and_its_gradients():
    """In fp32 as near as fp32 is; in 16 bits, which they are for, as near as those are."""
    script = Path(__file__).with_name("interpreted_delta_rule.py")
    run = subprocess.run([fake.PYTHON, script], capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    compared = json.loads(run.stdout.splitlines()[-1])["compared"]
    assert set(compared) == {"fp32", "fp16", "fp32, documents"}
    for case, distances in compared.items():
        assert len(distances) >= 7, case
        assert max(distances) < (2e-3 if case == "fp16" else 1e-5), case
