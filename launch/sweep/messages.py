"""What a sweep prints: a line when a point starts and ends, the last lines of one that fails, and
a list of failures at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from forge.config.numbers import counted as count
from forge.config.numbers import time_span
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep.directory import Point
from forge.resolve.resolve import Resolution
from forge.rundir import outcome
from forge.rundir.directory import short
from forge.rundir.files import last_lines, read_json
from forge.rundir.saved_config import is_run

LAST_LINES = 8
LONGEST = 1000  # characters shown of a printed line
OUTPUT = Path("logs", "output.log")
PLAIN = ("ValueError", "RuntimeError", "CallbackError")  # kinds of errors of no further meaning
NO_ANSWER = "Slurm does not answer, so its jobs are shown as their directories have them"


def print_line(text: str) -> None:
    """Print a line at once. The sweep continues even after its reader has stopped early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_warnings(resolutions: Iterable[Resolution]) -> None:
    warnings = (warning for resolution in resolutions for warning in resolution.warnings)
    for text in dict.fromkeys(f"{w.what} ({w.key}; -> {w.fix})" for w in warnings):
        print(f"warning: {text}", file=sys.stderr)


def label(point: Point) -> str:
    words = [point.arm] if point.arm else []
    words += [f"{key}={value}" for key, value in point.varied.items()]
    return " ".join(words) or point.slug


def line(point: Point, event: str, more: str = "") -> str:
    """`#003 done      optimizer.lr=0.001 seed=1   eval/loss 3.2 after 300 steps`."""
    return f"#{point.number:03d} {event:<9} {label(point)}{'   ' + more if more else ''}"


def failed_line(point: Point, more: str, output: Iterable[str]) -> str:
    return "\n".join([line(point, "FAILED", more), *(f"     | {text}" for text in output)])


def reached(point: Point, seconds: float | None = None) -> str:
    """The progress of an ended run: its objective, steps, and time taken."""
    result, words = outcome.read_result(point.path), list[str]()
    if result is not None:
        name = read_json(point.path / outcome.RESULT)["objective"].get("name")
        words += [f"{name} {result.objective:.4g}"] if result.objective is not None else []
        words += [f"{result.step} steps"]
    return ", ".join([*words, *([time_span(seconds)] if seconds is not None else [])])


def last_words(path: Path, code: int | None = None) -> list[str]:
    """The end of a failed run's output, or its error."""
    reason = outcome.failure(path) or {}
    error = str(reason.get("said") or reason.get("message") or "")
    lines = [text.rstrip() for text in error.splitlines() if text.strip()]
    if lines := lines or _printed(path / OUTPUT):
        return lines[-LAST_LINES:]
    return [f"its processes ended with exit code {code}, and said nothing"] if code else []


def end_of(file: Path | None) -> list[str]:
    """The end of a job's output, and the output file."""
    lines = _printed(file)
    return [*lines[-LAST_LINES:], f"({short(file)})"] if file is not None and lines else []


def cause(path: Path, code: int | None = None) -> str:
    """The cause of a run's failure, in a line."""
    reason = outcome.failure(path) or {}
    kind, message = str(reason.get("type") or ""), str(reason.get("message") or "").strip()
    if message:
        first = message.splitlines()[0]
        return first if not kind or kind in PLAIN or kind.startswith("SIG") else f"{kind}: {first}"
    # A job ended before the run began leaves nothing but the job's output.
    output = last_words(path) or _printed(slurm.job_log(path)) or last_words(path, code)
    return kind or "".join(output[-1:])


def _printed(file: Path | None) -> list[str]:
    lines = last_lines(file) if file is not None else []
    return [line.rstrip()[:LONGEST] for line in lines if line.strip()]


def failures(failed: Iterable[tuple[Point, str]]) -> list[str]:
    """The closing list: each failed point, the cause, and the directory."""
    lines = []
    for point, reason in failed:
        lines += [f"  {line(point, 'failed')}"]
        lines += [f"       {reason}"] if reason else []
        lines += [f"       {short(point.path)}"] if is_run(point.path) else []
    return lines


def count_states(states: Sequence[str], noun: str = "point") -> str:
    """'6 points: 4 done, 2 failed'."""
    words = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return count(len(states), noun) + (f": {', '.join(words)}" if words else "")
