"""The loss of each format of weights, gradients and moments against fp32: 500 steps of a small
model, three seeds; gap and interval, as tables and as a page.

    python benchmarks/learning/formats.py [FOLDER]

Writes results/formats.md and results/formats.html beside this file. FOLDER: where the sweep is,
which continues where it was; default: a temporary one. Takes ten minutes on two quiet cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
SWEEP = ("-m", "experiment=formats", "run.device=cpu", "run.num_threads=1", "launch=local")


def forge(folder: Path, verb: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"forge.{verb}", *words], cwd=folder, check=True)


def main(folder: Path) -> None:
    forge(folder, "train", *SWEEP)
    page, tables = RESULTS / "formats.html", RESULTS / "formats.md"
    forge(folder, "report", "sweeps/formats", "--html", str(page), "--markdown", str(tables))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
