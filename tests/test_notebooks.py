"""The notebooks run from top to bottom."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from forge.launch.local.notebook import STEP

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

PRINTED = {
    "01_compose_check_train": (
        "3 problems; nothing was started or written.",
        "bits per byte after 120 steps",
    ),
    "02_read_a_sweep": (
        "(6 points: 6 done)",
        "6 runs in 2 arms: 6 done.",
        "difference to lr=0.001",
        "over 3 seeds.",
    ),
    "03_from_python": (
        "step 60/60 | loss ",
        "finished after 60 steps: ",
        "it goes on with: forge.resume('runs/mine')\nstopped",
        "Decoder of step 60 on cpu, from runs/",
        "sweep: sweeps/rates   (6 points: 6 done)",
        "page: sweeps/rates/report/index.html",
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    printed = "".join(_text(output) for of_cell in outputs for output in of_cell)
    assert [words for words in PRINTED[path.stem] if words not in printed] == []
    for of_cell in outputs:
        progress = [output for output in of_cell if STEP.match(_text(output))]
        assert len(progress) <= 1, "progress is one line that is rewritten"


def _text(output: Any) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def test_every_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PRINTED)
