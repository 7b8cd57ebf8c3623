"""Why a run failed, told once: error.json is the first rank's that has a reason of its own."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from forge.rundir.directory import ERROR, resume_command, short, write_first
from forge.rundir.stored import fields_of, read_json

# seconds that a rank which has lost another waits for that one, or its launcher, to say why
PATIENCE = 3.0


def record(
    run_dir: Path,
    *,
    rank: int,
    kind: str,
    message: str,
    said: str,
    code: int,
    trace: str = "",
    refused: bool = False,
) -> bool:
    """Keep the reason unless there is one; whether it was kept. said: what the terminal is told.
    code: for the process to exit with.

    refused: it is a mistake that forge has found before the first step. Raises OSError.
    """
    content = {
        "rank": rank,
        "type": kind,
        "message": message,
        "traceback": trace,
        "said": said,
        "code": code,
        "refused": refused,
    }
    return write_first(run_dir / ERROR, content)


def recorded(run_dir: Path, patience: float = 0.0) -> dict[str, Any] | None:
    """The reason that is there, or comes within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fields_of(read_json(run_dir / ERROR), {"message": str})
        except (OSError, ValueError):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)


def refused(run_dir: Path) -> str | None:
    """The mistake that a run was refused for before its first step, if it was."""
    reason = recorded(run_dir) or {}
    return reason["message"] if reason.get("refused") else None


def ended_by(run_dir: Path, number: int, *, rank: int, ranks: int) -> str:
    """The words for a rank that a signal has ended."""
    name = signal.Signals(number).name
    hint = " (out of memory? lower train.batch_size)" if name == "SIGKILL" else ""
    which = "the worker" if ranks == 1 else f"rank {rank} of {ranks}"
    return f"{which} was ended by {name}{hint}; the run goes on with: {resume_command(run_dir)}"


def place(run_dir: Path, *, goes_on: bool) -> str:
    """Where the traceback is, and how the run goes on when it has begun."""
    again = f"; the run goes on with: {resume_command(run_dir)}" if goes_on else ""
    return f"\n(the traceback is in {short(run_dir / ERROR)}{again})"
