"""The user's command at the end of a run: run.on_end, for a message or a next step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forge.rundir.outcome import read_result, refused_for

LONGEST = 300.0  # seconds for the command


def run_on_end(run_dir: Path, command: str | None, code: int) -> None:
    """Run the command in a shell, with the end of the run in FORGE_RUN_DIR, FORGE_STATUS (finished,
    stopped or failed), FORGE_REASON, FORGE_STEP and FORGE_EXIT_CODE.

    A failure of the command is a warning. A run refused before its first step has no end. code: of
    the run's ranks.
    """
    if not command or refused_for(run_dir):
        return
    result = read_result(run_dir)
    is_own = result is not None and (code == 0 or result.status == "stopped")
    facts = {
        "RUN_DIR": str(run_dir),
        "STATUS": result.status if result and is_own else "failed",
        "REASON": result.reason if result and is_own else "",
        "STEP": str(result.step) if result and is_own else "",
        "EXIT_CODE": str(code),
    }
    variables = {f"FORGE_{name}": value for name, value in facts.items()}
    try:
        ended = subprocess.run(command, shell=True, env=os.environ | variables, timeout=LONGEST)
        fault = f"exit code {ended.returncode}" if ended.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    if fault:
        print(f"warning: run.on_end failed: {fault}", file=sys.stderr, flush=True)
