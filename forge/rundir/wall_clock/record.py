"""The record of the newest start of a run, as ledger.json has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.rundir.files import read_object
from forge.rundir.wall_clock.starts import agent_cause

RECORD = "ledger.json"
UNBEGUN = -1  # steps of a start that has not come to its first


def cause_of_command(run_dir: Path) -> str:
    """The cause of a start that no restart of forge's explains: by torchrun, or by a command."""
    return agent_cause((read_record(run_dir) or {}).get("time"))


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """The record of the newest start; None without one, or with a damaged one."""
    try:
        record = read_object(run_dir / RECORD)
        numbers = {name: float(record[name]) for name in ("began", "time")}
        steps = {name: int(record[name]) for name in ("first", "step")}
        seconds = {str(name): float(value) for name, value in record["seconds"].items()}
        words = {name: str(record[name]) for name in ("cause", "name")}
        return {**numbers, **words, **steps, "seconds": seconds}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
