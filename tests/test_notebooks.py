"""The notebooks run from top to bottom, and what they store is what they print."""

import re
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
        "Against lr=0.001, at 5 %: lr=0.003 is better.",
    ),
    "03_from_python": (
        "step 60/60 | loss ",
        "finished after 60 steps: ",
        "it continues with: forge.resume('runs/mine')\nstopped",
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
    assert _missing(path, notebook) == []
    for of_cell in [cell.get("outputs", []) for cell in notebook.cells]:
        progress = [output for output in of_cell if STEP.match(_text(output))]
        assert len(progress) <= 1, "progress is one line that is rewritten"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_a_whole_run_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"/(?:tmp|home|root|Users|private|var|opt)/[^\s\"]*", text) == []
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert _missing(path, notebook) == []
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    source = "\n".join(cell.source for cell in cells)
    assert re.findall(r"(?m)^\s*(?:from|import) forge\..*|^from forge .*", source) == [], (
        "all are of `import forge`"
    )


def test_what_is_stored_of_checks_is_what_they_print(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All before the run is made; which layouts fit is of the machine."""
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    names: dict[str, Any] = {}
    compared = 0
    for cell in cells:
        if "forge.train(" in cell.source:
            break
        exec(cell.source, names)
        stored = "".join(_text(output) for output in cell.outputs)
        printed = capsys.readouterr().out
        assert _lines(printed) == _lines(stored), "its output is of another day: execute it"
        compared += 1
    assert compared == 3


def _lines(printed: str) -> list[str]:
    # OmegaConf 2.3 makes a list of a pair, 2.4 a tuple
    printed = printed.replace("new_rows=(0, 0)", "new_rows=[0, 0]")
    return [line for line in printed.splitlines() if not line.startswith("parallel.layout ")]


def _missing(path: Path, notebook: Any) -> list[str]:
    """What it has to print, and has not."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(_text(output) for output in outputs)
    return [words for words in PRINTED[path.stem] if words not in printed]


def _text(output: Any) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def test_every_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(PRINTED)
