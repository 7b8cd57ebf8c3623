"""Every start of a run and how it ended, a line each in attempts.jsonl."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from forge.rundir import json_lines
from forge.rundir.provenance import OURS, now, revision, versions
from forge.rundir.stored import ATTEMPTS, newest


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All lines, oldest first; one that a kill left unfinished is left out."""
    return json_lines.read(run_dir / ATTEMPTS)


def started(run_dir: Path, *, step: int, source: str, resume_from: str | None) -> None:
    """Note a start: which config is in force, and from where the run goes on."""
    where = {"host": platform.node(), "pid": os.getpid(), "config": newest(run_dir).name}
    made = {"git_revision": revision(OURS), "versions": versions()}
    began = {
        "event": "start",
        "time": now(),
        "step": step,
        "from": source,
        "resume_from": resume_from,
    }
    json_lines.append(run_dir / ATTEMPTS, {**began, **where, **made})


def ended(run_dir: Path, *, status: str, reason: str, step: int | None) -> None:
    """Note an end; a start without one was killed."""
    json_lines.append(
        run_dir / ATTEMPTS,
        {"event": "end", "time": now(), "status": status, "reason": reason, "step": step},
    )


def reached(run_dir: Path) -> int:
    """The last step that the run is known to have saved: it went on from there, or ended there of
    its own.
    """
    own = [
        line
        for line in read(run_dir)
        if line.get("event") == "end" or not _elsewhere(str(line.get("from")))
    ]
    return max((step for line in own if isinstance(step := line.get("step"), int)), default=0)


def _elsewhere(source: str) -> bool:
    return os.path.isabs(source)


def resumed_from(run_dir: Path) -> str | None:
    """The checkpoint.resume_from of the last start."""
    starts = [line for line in read(run_dir) if line.get("event") == "start"]
    return starts[-1]["resume_from"] if starts else None
