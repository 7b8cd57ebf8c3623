"""Starts of a run: the command or call that asked for one, the launch of a process, its exit."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.rundir.files import append_row

ROWS = "ledger.jsonl"
LAUNCHED = "FORGE_LAUNCHED"  # variable of a rank: when the launcher started it, and why
COMMAND, RESTART, REQUEUE = "command", "restart", "requeue"


def note_submission(run_dir: Path) -> None:
    """Record that somebody has asked for the run, or for the run to continue: by a command, which
    began a little earlier, or by a call from Python.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_command = spec is not None and spec.name.startswith("forge.")
    append_event(run_dir, event="submit", time=_process_began() if is_command else time.time())


def note_exit(run_dir: Path, code: int) -> None:
    """Record that the processes of a start have ended, as seen by the launcher."""
    append_event(run_dir, event="exit", code=code)


def launched() -> tuple[float, str]:
    """The start of this process by a launcher, in seconds since 1970, and the cause."""
    environ = os.environ
    when, _, cause = environ.pop(LAUNCHED, "").partition(" ")  # not for processes started from here
    if when:
        return float(when), cause
    if environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return _process_began(), RESTART
    if environ.get("SLURM_RESTART_COUNT", "0") != "0":
        return _process_began(), REQUEUE
    outside = "TORCHELASTIC_RUN_ID" in environ or "SLURM_JOB_ID" in environ
    return (_process_began() if outside else time.time()), COMMAND


def append_event(run_dir: Path | None, **row: Any) -> None:
    if run_dir is not None:
        with suppress(OSError):  # a full disk is no reason for a run not to begin, or to end
            append_row(run_dir / ROWS, {"time": time.time()} | row)


def agent_cause(last: float | None) -> str:
    """The cause of a start by torchrun's agent, by when the run was last at work: RESTART, if the
    agent has seen that. A change of the nodes does not count among torchrun's restarts.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or last is None:
        return COMMAND
    return RESTART if _process_began(str(os.getppid())) < last else COMMAND


def _process_began(process: str = "self") -> float:
    """When a process began, in seconds since 1970; now, where the system does not say."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
