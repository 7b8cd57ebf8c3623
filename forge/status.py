"""`python -m forge.status SWEEP`: how far each point has come; of one point, or a single run, its
logs too.

Examples:
    python -m forge.status sweeps/tiny --watch
    python -m forge.status sweeps/tiny 3
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge import cli
from forge.config.numbers import time_span
from forge.config.problems import COMMAND_LINE, refusal, short_keys
from forge.launch.local.processes import rank_log
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import messages
from forge.launch.sweep.directory import Point, SweepDirectory, example_sweeps, find_sweep
from forge.launch.sweep.results import best_finished, columns
from forge.launch.sweep.state import (
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    WAITING,
    Survey,
    last_job,
    survey,
)
from forge.rundir.directory import short
from forge.rundir.files import last_lines
from forge.rundir.pace import straggler
from forge.rundir.progress import last_logged, progress
from forge.rundir.saved_config import is_run
from forge.rundir.signs import silent_ranks, stalled, waits_in
from forge.rundir.wall_clock.goodput import read_goodput

EVERY = 5.0  # seconds
LINES, STEPS = 20, 5  # of the end of a log
NUMBER = re.compile(r"#?-?\d{1,9}", re.ASCII)
CLEAR = "\x1b[H\x1b[2J"
HEADS = ("state", "step", "loss", "eval", "left", "job", "why")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the status once, or repeatedly with --watch; 2 for neither a sweep nor a run."""
    description = "How far the points of a sweep, or a run, have come."
    arguments = points_parser("forge.status", description, "points to be shown with their logs")
    watch = {"type": float, "nargs": "?", "const": EVERY, "metavar": "SECONDS"}
    arguments.add_argument("--watch", help=f"again every {EVERY:g} s till all end", **watch)
    arguments.add_argument("--json", action="store_true", help="the table as JSON")
    options = cli.parse(arguments, argv)

    def look() -> tuple[str, bool]:
        sweep, points = points_of(*named_points(options, "forge.status"))
        findings = survey(points, reasons=True)
        if options.json:
            text = json.dumps([_row(point, findings) for point in points], indent=1)
        elif sweep is not None and not options.numbers:
            text = _table(sweep, points, findings)
        else:
            text = "\n\n".join(_point_details(point, findings) for point in points)
        return cli.printable(text), _is_over(findings)

    return cli.refuse(lambda: _show(look, options.watch))


def points_parser(prog: str, description: str, numbers: str) -> cli.Parser:
    """A parser of a sweep and numbers of points. numbers: help text of the numbers."""
    usage = f"python -m {prog} [OPTION ...] SWEEP [NUMBER ...]"
    result = cli.Parser(prog, description, usage=usage)
    place_help = "the directory of a sweep, or of a run"
    result.add_argument("place", nargs="?", metavar="SWEEP", help=place_help)
    result.add_argument("numbers", nargs="*", metavar="NUMBER", help=numbers)
    return result


def named_points(options: argparse.Namespace, prog: str) -> tuple[Path, list[int]]:
    if options.place is None:
        hint = f"python -m {prog} {example_sweeps(most=1)}"
        raise refusal("SWEEP", "which sweep, or run?", hint, COMMAND_LINE)
    for word in options.numbers:
        if not NUMBER.fullmatch(word):
            hint = f"python -m {prog} {options.place} 3"
            raise refusal(word, "a point is given by its number.", hint, COMMAND_LINE)
    return Path(options.place), [int(word.lstrip("#")) for word in options.numbers]


def points_of(
    place: Path, numbers: Sequence[int] = ()
) -> tuple[SweepDirectory | None, list[Point]]:
    """The points of a sweep with these numbers, or all points; a single run counts as a point.
    Raises ConfigError.
    """
    if is_run(place) and not numbers:
        return None, [Point(number=0, hash="", slug=place.name, path=place.resolve(), overrides=())]
    sweep = find_sweep(place)
    points = {point.number: point for point in sweep.points()}
    for number in numbers:
        if number not in points:
            hint = f"one of {min(points)} to {max(points)}" if points else "it has none at all"
            raise refusal(str(number), f"{place} has no point {number}.", hint, COMMAND_LINE)
    return sweep, [points[number] for number in dict.fromkeys(numbers or points)]


def _row(point: Point, found: Survey) -> dict[str, Any]:
    state, now = found.states[point.number], progress(point.path)
    silent = silent_ranks(point.path) if state == RUNNING else []
    stall = stalled(point.path) if state == RUNNING else ""
    spent = read_goodput(point.path, running=state == RUNNING)
    return {
        "number": point.number,
        "arm": point.arm,
        "varied": point.varied,
        "overrides": list(point.overrides),
        "state": state,
        "step": now.step,
        "of": now.of,
        "loss": now.loss,
        "evaluation": dict([now.evaluation]) if now.evaluation else {},
        "seconds_left": now.left if state == RUNNING and not silent and not stall else None,
        "silent": silent,
        "waits_in": waits_in(point.path) if silent or stall else "",
        "stalled": stall or None,
        "straggler": (straggler(point.path) or None) if state == RUNNING and not silent else None,
        "goodput": spent.plain() if spent else None,
        "job": last_job(point),
        "job_state": found.jobs.get(point.number),
        "job_reason": found.reasons.get(point.number),
        "why": messages.cause(point.path, point.code) if state == FAILED else "",
        "path": str(point.path),
    }


def _table(sweep: SweepDirectory, points: Sequence[Point], found: Survey) -> str:
    """A line a point, as wide as the terminal; the best point so far, and the next command."""
    varying = columns(points)
    names = list(short_keys(list(varying)).values())
    cells = [["#", "arm", *names, *HEADS]]
    for i, status in enumerate(_row(point, found) for point in points):
        point_values = [column[i] for column in varying.values()]
        evaluation = next(iter(status["evaluation"].values()), None)
        numbers = [_number(status["loss"]), _number(evaluation), _left(status["seconds_left"])]
        stall = "; ".join(status["silent"]) or status["stalled"] or ""
        why = status["why"] or "; ".join(filter(None, [stall, status["waits_in"]]))
        last = [status["state"], _steps(status, "/"), *numbers, _job(status), why]
        cells.append([f"{status['number']:03d}", status["arm"] or "", *point_values, *last])
    states = [found.states[point.number] for point in points]
    lines = [
        f"{short(sweep.path)}   ({messages.count_states(states)})",
        "",
        *cli.aligned_lines(cells),
    ]
    footer = []
    done = [point for point, state in zip(points, states, strict=True) if state == DONE]
    if best_point := best_finished(sweep.path, done):
        point, objective, value = best_point
        point_values = [column[points.index(point)] for column in varying.values()]
        typed = [f"{name}={cell}" for name, cell in zip(names, point_values, strict=True) if cell]
        label = " ".join([f"#{point.number:03d}", *filter(None, [point.arm]), *typed])
        footer.append(f"best: {label}   {objective} {value:.5g}")
    if _is_over(found) and len(done) > 1:
        footer.append(f"compare them with: python -m forge.report {short(sweep.path)}")
    lines += ["", *footer] if footer else []
    lines += ["", f"{messages.NO_ANSWER}: {found.silent}"] if found.silent else []
    return "\n".join(lines)


def _point_details(point: Point, found: Survey) -> str:
    """A point's directory, progress, cause of failure, last steps, and end of the log."""
    status = _row(point, found)
    lines = [f"{short(point.path)}   {status['state']}"]
    if point.hash:
        lines = [messages.line(point, status["state"])]
    rows = [("directory", short(point.path)), ("steps", _steps(status, " of ") or "none")]
    values = {"loss": status["loss"], **status["evaluation"]}
    spent = read_goodput(point.path, running=status["state"] == RUNNING)
    rows += [(name, _number(value)) for name, value in values.items()]
    rows += [
        ("left", _left(status["seconds_left"])),
        ("goodput", spent.words() if spent else ""),
        ("job", _job(status)),
        ("why it failed", status["why"]),
        *(("waits" if not n else "", message) for n, message in enumerate(status["silent"])),
        ("hangs?", status["stalled"]),
        ("collective", status["waits_in"]),
        ("slow rank", status["straggler"]),
    ]
    logs = logs_of(point)
    rows += [("log" if file == logs[0] else "", short(file)) for file in logs]
    lines += [f"  {name:<14} {value}" for name, value in rows if value]
    running = status["state"] == RUNNING and not status["silent"] and not status["stalled"]
    lines += _last_steps(point.path, running)
    if logs and (message := last_lines(logs[0], LINES)):
        lines += ["", f"the end of {short(logs[0])}:", *(f"  {text}" for text in message)]
    return "\n".join(lines)


def _last_steps(run: Path, is_running: bool) -> list[str]:
    """A table of the last logged steps, below a heading; nothing where there are none."""
    cells = [["step", "loss", "eval", "tokens/s", "left"]]
    for step in last_logged(run, STEPS):
        speed = "" if step.tokens_per_second is None else f"{step.tokens_per_second:,.0f}"
        time_left = _left(step.left) if is_running else ""
        evaluation = _number(step.evaluation and step.evaluation[1])
        cells.append([f"{step.step:,}", _number(step.loss), evaluation, speed, time_left])
    if len(cells) == 1:
        return []
    return ["", "its last steps:", *(f"  {line}" for line in cli.aligned_lines(cells))]


def logs_of(point: Point) -> list[Path]:
    """Log files with content: the main rank's output, then the log of each rank."""
    printed = [point.path / messages.OUTPUT]
    if last_job(point):
        printed += filter(None, [slurm.job_log(point.path)])
    ranks = (point.path / "logs").glob("rank_*.log")
    ranks = sorted(ranks, key=lambda file: int(file.stem.removeprefix("rank_") or 0))
    logs = [file for file in (*printed, *ranks) if file.is_file() and file.stat().st_size]
    return logs or [file for file in [rank_log(point.path, 0)] if file.is_file()]


def _show(look: Callable[[], tuple[str, bool]], every: float | None) -> int:
    while True:
        text, over = look()
        print(f"{CLEAR}{text}" if every is not None and sys.stdout.isatty() else text, flush=True)
        if every is None or over:
            return 0
        time.sleep(max(every, 0.1))


def _is_over(found: Survey) -> bool:
    return not {RUNNING, QUEUED, WAITING} & set(found.states.values())


def _steps(one: dict[str, Any], between: str) -> str:
    return "" if one["of"] is None else f"{one['step']:,}{between}{one['of']:,}"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else time_span(seconds)


def _job(one: dict[str, Any]) -> str:
    reason = f"({one['job_reason']})" if one["job_reason"] else ""
    return " ".join(filter(None, [one["job"], one["job_state"], reason])) if one["job"] else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
