"""Every start of a run and how it ended, a line each in attempts.jsonl."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from forge.config.stored import ATTEMPTS, newest, parsed
from forge.launch.provenance import OURS, now, revision, versions


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All lines, oldest first; one that a kill left unfinished is left out."""
    try:
        lines = (run_dir / ATTEMPTS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return list(parsed(lines))


def started(run_dir: Path, *, step: int, source: str, resume_from: str | None) -> None:
    """Note a start: which config is in force, and from where the run goes on."""
    where = {"host": platform.node(), "pid": os.getpid(), "config": newest(run_dir).name}
    made = {"git_revision": revision(OURS), "versions": versions()}
    _append(run_dir, {"event": "start", "time": now(), "step": step, "from": source, "resume_from": resume_from, **where, **made})


def ended(run_dir: Path, *, status: str, reason: str, step: int | None) -> None:
    """Note an end; a start without one was killed."""
    _append(run_dir, {"event": "end", "time": now(), "status": status, "reason": reason, "step": step})


def reached(run_dir: Path) -> int:
    """The last step that the run is known to have saved: it went on from there, or ended there of its own."""
    own = [line for line in read(run_dir) if line.get("event") == "end" or not _elsewhere(str(line.get("from")))]
    return max((line.get("step") or 0 for line in own), default=0)


def _elsewhere(source: str) -> bool:
    return os.path.isabs(source)


def resumed_from(run_dir: Path) -> str | None:
    """The checkpoint.resume_from of the last start."""
    starts = [line for line in read(run_dir) if line.get("event") == "start"]
    return starts[-1]["resume_from"] if starts else None


def _append(run_dir: Path, line: dict[str, Any]) -> None:
    with (run_dir / ATTEMPTS).open("a+", encoding="utf-8") as file:
        torn = file.tell() > 0 and not _ends_with_newline(run_dir / ATTEMPTS)
        file.write(("\n" if torn else "") + json.dumps(line) + "\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
