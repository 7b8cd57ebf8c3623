"""What a sweep says on the terminal: a line when a point starts and ends, the last words of one
that fails, and a list at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from forge.config.numbers import time_span
from forge.launch.sweep.directory import Point
from forge.rundir import directory, failure
from forge.rundir.directory import short
from forge.rundir.progress import last_lines
from forge.rundir.stored import is_run, read_json

LAST_LINES = 8
LONGEST = 1000  # of a line that a run printed
OUTPUT = Path("logs", "output.log")


def say(text: str) -> None:
    """Print a line at once. Whoever reads it may stop early, and the sweep goes on."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def label(point: Point) -> str:
    """What tells a point from its neighbours."""
    return (
        " ".join(
            [
                *([point.arm] if point.arm else []),
                *(f"{key}={value}" for key, value in point.varied.items()),
            ]
        )
        or point.slug
    )


def line(point: Point, event: str, more: str = "") -> str:
    """`#003 done      optimizer.lr=0.001 seed=1   eval/loss 3.2 after 300 steps`."""
    return f"#{point.number:03d} {event:<9} {label(point)}{'   ' + more if more else ''}"


def reached(point: Point, seconds: float | None = None) -> str:
    """How far a run has come that has ended: its objective, steps, and how long it took."""
    result = directory.read_result(point.path)
    words = []
    if result is not None:
        name = read_json(point.path / directory.RESULT)["objective"].get("name")
        words += [f"{name} {result.objective:.4g}"] if result.objective is not None else []
        words += [f"{result.step} steps"]
    return ", ".join([*words, *([time_span(seconds)] if seconds is not None else [])])


def why(path: Path, code: int | None = None) -> list[str]:
    """The last words of a run that failed: as it told them, else the end of what it printed."""
    reason = failure.recorded(path) or {}
    said = str(reason.get("said") or reason.get("message") or "")
    lines = [text.rstrip() for text in said.splitlines() if text.strip()] or _printed(path / OUTPUT)
    return lines[-LAST_LINES:] or (
        [f"its processes ended with exit code {code}, and said nothing"] if code else []
    )


def last_of(file: Path | None) -> list[str]:
    """The end of what a job has printed to a file, and which it is."""
    lines = _printed(file) if file is not None else []
    return [*lines[-LAST_LINES:], f"({short(file)})"] if file is not None and lines else []


def _printed(file: Path) -> list[str]:
    return [line.rstrip()[:LONGEST] for line in last_lines(file) if line.strip()]


def cause(path: Path, code: int | None = None) -> str:
    """Why a run failed, in one line."""
    reason = failure.recorded(path) or {}
    message = [text for text in str(reason.get("message") or "").splitlines() if text.strip()]
    kind = str(reason.get("type") or "")
    known = message[0] if message else kind
    if (
        message
        and kind
        and kind not in ("ValueError", "RuntimeError", "CallbackError")
        and not kind.startswith("SIG")
    ):
        known = f"{kind}: {known}"
    return known or next(
        (lines[-1] for lines in (why(path), _of_job(path), why(path, code)) if lines), ""
    )


def _of_job(path: Path) -> list[str]:
    """What the last job of a run has printed, which is all there is of one that ended before the
    run began.
    """
    from forge.launch.slurm import jobs as slurm

    file = slurm.log_file(path)
    return _printed(file) if file is not None else []


def failures(failed: Iterable[tuple[Point, str]]) -> list[str]:
    """The list at the end: each point that failed, and why."""
    lines = []
    for point, words in failed:
        lines += (
            [f"  {line(point, 'failed')}", f"       {words}"]
            if words
            else [f"  {line(point, 'failed')}"]
        )
        lines += [f"       {short(point.path)}"] if is_run(point.path) else []
    return lines


def counted(states: Sequence[str]) -> str:
    """'6 points: 4 done, 2 failed'."""
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    count = f"{len(states)} point{'s' * (len(states) != 1)}"
    return (
        f"{count}: {', '.join(f'{n} {state}' for state, n in counts.items())}" if counts else count
    )


def since(began: float) -> float:
    """Seconds since a time of time.monotonic()."""
    return time.monotonic() - began
