"""A Slurm for the tests marked `slurm`, shared by those of a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import one_box
import pytest


@pytest.fixture(scope="module")
def one_box_slurm() -> Iterator[one_box.OneBox]:
    """The cluster, which every command of Slurm that is started meanwhile asks; skipped where there
    can be none.
    """
    why_not = one_box.missing()
    if why_not:
        pytest.skip(f"no Slurm: {why_not}")
    folder = Path(tempfile.mkdtemp(prefix="forge-slurm-"))
    box, before = one_box.OneBox(folder), os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(box.conf)
    try:
        box.start()
        yield box
    finally:
        box.stop()
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder, ignore_errors=True)
