"""`python -m forge.checkpoints RUN`: the table, the same as JSON, and what is said of what is no
run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge import checkpoints, cli
from forge.rundir import directory

TABLE = """\
step  saved at                  because of        size     evaluation
3     2026-01-02T03:04:05+0000  interval          0.0 MiB  loss 4.391, bits_per_byte 1.793  complete
20    2026-01-02T03:04:05+0000  interval_minutes  1.0 MiB                                   complete
100   2026-01-02T03:04:05+0000  best              0.0 MiB  loss not finite                  complete
110                                               0.0 MiB{gap}cannot be used: {torn}
120   2026-01-02T03:04:05+0000  interval          0.0 MiB{gap}cannot be used: {short}
130   2026-01-02T03:04:05+0000  interval          0.0 MiB{gap}cannot be used: {foreign}
140   2026-01-02T03:04:05+0000  end               0.0 MiB{gap}cannot be used: {newer}
"""
FAULTS = {
    "torn": "it is torn: it has no meta.json, which is written last",
    "short": "it is torn: weights/rank_0.bin is missing",
    "foreign": "it is of another run; checkpoint.resume_from takes one on purpose",
    "newer": "it has checkpoint format 9, and this version reads format 2; "
    "a newer version of forge wrote it",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    composition, resolution = cli.resolved([f"run.dir={tmp_path / 'run'}"])
    return directory.create(resolution, overrides=composition.overrides)[0]


def save(run: Path, step: int, **meta: Any) -> Path:
    path = run / "checkpoints" / f"step_{step}"
    path.mkdir(parents=True)
    about = {"format": 2, "step": step, "reason": "interval", "run_id": directory.run_id(run)}
    about |= {"time": "2026-01-02T03:04:05+0000", "metrics": {}, "files": {}, **meta}
    (path / "meta.json").write_text(json.dumps(about))
    return path


@pytest.fixture
def seven(run: Path) -> Path:
    save(run, 100, reason="best", metrics={"loss": None})
    save(run, 3, metrics={"loss": 4.39123, "bits_per_byte": 1.7931, "perplexity": 80.7})
    (save(run, 20, reason="interval_minutes") / "tensors").write_bytes(bytes(2**20))
    (save(run, 110) / "meta.json").unlink()
    save(run, 120, files={"weights/rank_0.bin": 7})
    save(run, 130, run_id="another")
    save(run, 140, format=9, reason="end")
    for name in ("step_5.undone", ".step_6.partial", "notes"):
        (run / "checkpoints" / name).mkdir()
    (run / "checkpoints" / "step_7").write_text("a file")
    return run


def test_the_table(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.main([str(seven)]) == 0
    assert capsys.readouterr() == (TABLE.format(**FAULTS, gap=" " * 35), "")


def test_as_json(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.main([str(seven), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows] == [3, 20, 100, 110, 120, 130, 140]
    kept = "step path time reason metrics best_by bytes fault best weights_only verified"
    assert set(rows[0]) == set(kept.split())
    assert rows[0]["metrics"]["loss"] == 4.39123
    assert (rows[0]["fault"], rows[0]["path"]) == (None, f"{seven}/checkpoints/step_3")
    assert rows[1]["bytes"] == 2**20 + (seven / "checkpoints/step_20/meta.json").stat().st_size
    assert (rows[3]["time"], rows[3]["fault"]) == (None, FAULTS["torn"])


def test_a_run_without_any(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run} has no checkpoints\n"


def test_what_is_no_run(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "absent", run / "config.yaml"):
        assert checkpoints.main([str(path)]) == 2
        assert capsys.readouterr() == ("", f"{path} is no run directory: it has no config.yaml\n")
    (run / "provenance.json").write_text("{")
    assert checkpoints.main([str(run)]) == 2
    said = "is missing or damaged, and with it the id of the run; begin another"
    assert capsys.readouterr() == ("", f"{run}/provenance.json {said}\n")
