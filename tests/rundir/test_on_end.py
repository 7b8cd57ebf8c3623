"""run.on_end: the user's command at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.rundir import files
from forge.rundir.on_end import run_on_end

COMMAND = 'echo "$FORGE_STATUS|$FORGE_REASON|$FORGE_STEP|$FORGE_EXIT_CODE" >> "$FORGE_RUN_DIR/told"'


def told(run_dir: Path, code: int, command: str | None = COMMAND) -> str:
    (run_dir / "told").unlink(missing_ok=True)
    run_on_end(run_dir, command, code)
    file = run_dir / "told"
    return file.read_text().strip() if file.exists() else "nothing"


def test_the_command_knows_how_the_run_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path, 1) == "failed|||1"
    result = {"reason": "end", "step": 7, "metrics": {}, "objective": {"value": None}}
    files.write_json(tmp_path / "result.json", {**result, "status": "finished"})
    assert told(tmp_path, 0) == "finished|end|7|0"
    assert told(tmp_path, 137) == "failed|||137"  # the result is of an earlier start
    files.write_json(tmp_path / "result.json", {**result, "status": "stopped", "reason": "SIGTERM"})
    assert told(tmp_path, 143) == "stopped|SIGTERM|7|143"
    assert told(tmp_path, 0, None) == "nothing"
    assert capfd.readouterr().err == ""
    assert told(tmp_path, 0, "exit 3") == "nothing"
    assert "run.on_end failed: exit code 3" in capfd.readouterr().err
    files.write_json(tmp_path / "error.json", {"refused": True, "message": "no such file"})
    assert told(tmp_path, 2) == "nothing"
