"""The notebooks run from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert [words for words in PRINTED[path.stem] if words not in printed] == []


def test_every_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PRINTED)
