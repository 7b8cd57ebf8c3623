"""The Triton kernels of AdamW with moments of 8 and 4 bits, and of NF4, by Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fake_gpu import case as fake

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not fake.PYTHON.exists(), reason="no .venv-cuda: make cuda installs it"),
]


def test_what_the_kernels_write_is_what_operators_write():
    script = Path(__file__).with_name("interpreted_update.py")
    run = subprocess.run([fake.PYTHON, script], capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["other_codes"] == {"8bit": 0, "4bit": 0}
    assert len(result["unpacked"]) == 4
    assert all(result["unpacked"].values())
    for case, tensors in result["compared"].items():
        (_, weights), (count, _), (codes, _), (_, scale), (codes_2, _), (_, scale_2), *rounded = (
            tensors
        )
        assert weights < 1e-6, case
        assert (count, codes, codes_2) == (1, 1, 1), case
        assert max(scale, scale_2) < 1e-6, case
        # The master's copy is cut to bf16 by the interpreter, where a GPU rounds it.
        assert all(distance < 2**-7 for _, distance in rounded), case
