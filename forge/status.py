"""`python -m forge.status SWEEP`: how far each point has come; of one point, or a single run, its
logs too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge import cli
from forge.config.numbers import time_span
from forge.config.problems import COMMAND_LINE, ConfigError, Problem
from forge.config.problems import short_keys as shortest
from forge.launch.local.processes import log_file
from forge.launch.sweep import messages
from forge.launch.sweep.directory import Point, SweepDirectory, examples, find_sweep
from forge.launch.sweep.results import best, columns
from forge.launch.sweep.state import DONE, FAILED, RUNNING, Survey, job_of, survey
from forge.rundir.directory import short
from forge.rundir.progress import last_lines, last_logged, progress
from forge.rundir.stored import is_run

EVERY = 5.0
LINES = 20
STEPS = 5
NUMBER = re.compile(r"#?-?\d{1,9}", re.ASCII)
CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str] | None = None) -> int:
    """Print it once, or again and again with --watch; 2 for what is neither a sweep nor a run."""
    arguments = parser(
        "forge.status",
        "How far the points of a sweep, or a run, have come.",
        "points to be shown with their logs",
    )
    arguments.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=EVERY,
        metavar="SECONDS",
        help=f"again every {EVERY:g} s till all end",
    )
    arguments.add_argument("--json", action="store_true", help="the table as JSON")
    options = cli.parse(arguments, argv)

    def once() -> tuple[str, bool]:
        sweep, points = points_of(*named(options, "forge.status"))
        found = survey(points, reasons=True)
        if options.json:
            return json.dumps([row(point, found) for point in points], indent=1), _is_over(found)
        if sweep is not None and not options.numbers:
            return table(sweep, points, found), _is_over(found)
        return "\n\n".join(details(point, found) for point in points), _is_over(found)

    return cli.refuse(lambda: _show(once, options.watch))


def parser(prog: str, description: str, numbers: str) -> argparse.ArgumentParser:
    """A parser of a sweep and numbers of its points. numbers: what they are for."""
    result = argparse.ArgumentParser(
        prog=f"python -m {prog}", description=description, allow_abbrev=False
    )
    result.usage = f"python -m {prog} [OPTION ...] SWEEP [NUMBER ...]"
    result.add_argument(
        "place", nargs="?", metavar="SWEEP", help="the directory of a sweep, or of a run"
    )
    result.add_argument("numbers", nargs="*", metavar="NUMBER", help=numbers)
    return result


def named(options: argparse.Namespace, prog: str) -> tuple[Path, list[int]]:
    """The directory and the numbers that were typed. Raises ConfigError."""
    if options.place is None:
        what, fix = "which sweep, or run?", f"python -m {prog} {examples(most=1)}"
        raise ConfigError([Problem(key="SWEEP", what=what, fix=fix, where=COMMAND_LINE)])
    wrong = [word for word in options.numbers if not NUMBER.fullmatch(word)]
    if wrong:
        what, fix = "a point is given by its number.", f"python -m {prog} {options.place} 3"
        raise ConfigError([Problem(key=wrong[0], what=what, fix=fix, where=COMMAND_LINE)])
    return Path(options.place), [int(word.lstrip("#")) for word in options.numbers]


def points_of(
    place: Path, numbers: Sequence[int] = ()
) -> tuple[SweepDirectory | None, list[Point]]:
    """The points of a sweep with these numbers, or all; a single run counts as one. Raises
    ConfigError.
    """
    if is_run(place) and not numbers:
        return None, [Point(number=0, hash="", slug=place.name, path=place.resolve(), overrides=())]
    sweep = find_sweep(place)
    points = {point.number: point for point in sweep.points()}
    absent = [number for number in numbers if number not in points]
    if absent:
        what = f"{place} has no point {absent[0]}."
        fix = f"one of {min(points)} to {max(points)}" if points else "it has none at all"
        raise ConfigError([Problem(key=str(absent[0]), what=what, fix=fix, where=COMMAND_LINE)])
    return sweep, [points[number] for number in dict.fromkeys(numbers)] if numbers else list(
        points.values()
    )


def row(point: Point, found: Survey) -> dict[str, Any]:
    """What is known of a point."""
    state, now = found.states[point.number], progress(point.path)
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
        "seconds_left": now.left if state == RUNNING else None,
        "job": job_of(point),
        "job_state": found.jobs.get(point.number),
        "job_reason": found.reasons.get(point.number),
        "why": messages.cause(point.path, point.code) if state == FAILED else "",
        "path": str(point.path),
    }


def table(sweep: SweepDirectory, points: Sequence[Point], found: Survey) -> str:
    """A line a point, as wide as the terminal; the best so far, and what to do next."""
    rows = [row(point, found) for point in points]
    apart = columns(points)
    heads = [
        [
            "#",
            "arm",
            *shortest(list(apart)).values(),
            "state",
            "step",
            "loss",
            "eval",
            "left",
            "job",
            "why",
        ]
    ]
    cells = [_cells(one, [column[i] for column in apart.values()]) for i, one in enumerate(rows)]
    states = [found.states[point.number] for point in points]
    lines = [f"{short(sweep.path)}   ({messages.counted(states)})", "", *aligned([*heads, *cells])]
    last = [*_best(sweep, points, states, apart), *_next(sweep, states, over=_is_over(found))]
    lines += ["", *last] if last else []
    if found.silent:
        lines += [
            "",
            f"Slurm does not answer, so its jobs are shown as their directories have them: {found.silent}",
        ]
    return "\n".join(lines)


def _cells(one: dict[str, Any], apart: Sequence[str]) -> list[str]:
    steps = "" if one["of"] is None else f"{one['step']:,}/{one['of']:,}"
    evaluation = next(iter(one["evaluation"].values()), None)
    left = "" if one["seconds_left"] is None else time_span(one["seconds_left"])
    numbers = [_number(one["loss"]), _number(evaluation), left]
    return [
        f"{one['number']:03d}",
        one["arm"] or "",
        *apart,
        one["state"],
        steps,
        *numbers,
        _job(one),
        one["why"],
    ]


def _best(
    sweep: SweepDirectory,
    points: Sequence[Point],
    states: Sequence[str],
    apart: dict[str, list[str]],
) -> list[str]:
    """`best: #003 lr=0.003 seed=1   eval/loss 4.21`, where points that are done can be compared."""
    found = best(
        sweep.path, [point for point, state in zip(points, states, strict=True) if state == DONE]
    )
    if found is None:
        return []
    point, objective, value = found
    i = points.index(point)
    own = [
        f"{name}={column[i]}"
        for name, column in zip(shortest(list(apart)).values(), apart.values(), strict=True)
        if column[i]
    ]
    label = " ".join([f"#{point.number:03d}", *([point.arm] if point.arm else []), *own])
    return [f"best: {label}   {objective} {value:.5g}"]


def _next(sweep: SweepDirectory, states: Sequence[str], *, over: bool) -> list[str]:
    return (
        [f"compare them with: python -m forge.report {short(sweep.path)}"]
        if over and states.count(DONE) > 1
        else []
    )


def details(point: Point, found: Survey) -> str:
    """One point: where it is, how far, why it failed, its last steps, and what it said last."""
    one = row(point, found)
    lines = [
        messages.line(point, one["state"])
        if point.hash
        else f"{short(point.path)}   {one['state']}"
    ]
    steps = "none" if one["of"] is None else f"{one['step']:,} of {one['of']:,}"
    rows = [("directory", short(point.path)), ("steps", steps), ("loss", _number(one["loss"]))]
    rows += [(name, _number(value)) for name, value in one["evaluation"].items()]
    rows += [("left", time_span(one["seconds_left"]))] if one["seconds_left"] is not None else []
    rows += [("job", _job(one))] if one["job"] else []
    rows += [("why it failed", one["why"])] if one["why"] else []
    logs = logs_of(point)
    rows += [("log" if file == logs[0] else "", short(file)) for file in logs]
    lines += [f"  {name:<14} {value}".rstrip() for name, value in rows if value]
    lines += _last_steps(point, running=one["state"] == RUNNING)
    if logs and (said := last_lines(logs[0], LINES)):
        lines += ["", f"the end of {short(logs[0])}:", *(f"  {text}" for text in said)]
    return "\n".join(lines)


def _last_steps(point: Point, *, running: bool) -> list[str]:
    """A line for each of the steps that were logged last."""
    cells = [["step", "loss", "eval", "tokens/s", "left"]]
    for one in last_logged(point.path, STEPS):
        speed = "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        left = time_span(one.left) if running and one.left is not None else ""
        cells.append(
            [
                f"{one.step:,}",
                _number(one.loss),
                _number(one.evaluation and one.evaluation[1]),
                speed,
                left,
            ]
        )
    return (
        ["", "its last steps:", *(f"  {line}" for line in aligned(cells))] if len(cells) > 1 else []
    )


def logs_of(point: Point) -> list[Path]:
    """The logs that are there: what the main rank printed, then the log of each rank."""
    printed = [point.path / messages.OUTPUT]
    if job_of(point):
        from forge.launch.slurm import jobs as slurm

        printed += [file for file in [slurm.log_file(point.path)] if file is not None]
    ranks = sorted(
        (point.path / "logs").glob("rank_*.log"),
        key=lambda file: int(file.stem.removeprefix("rank_") or 0),
    )
    return [file for file in (*printed, *ranks) if file.is_file() and file.stat().st_size] or [
        file for file in [log_file(point.path, 0)] if file.is_file()
    ]


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells below one another, each ended by an ellipsis where the terminal ends; empty
    columns are left out.
    """
    kept = [i for i in range(len(cells[0])) if i == 0 or any(line[i] for line in cells[1:])]
    widths = {i: max(len(line[i]) for line in cells) for i in kept}
    lines = ["  ".join(line[i].ljust(widths[i]) for i in kept).rstrip() for line in cells]
    if not sys.stdout.isatty():
        return lines
    width = shutil.get_terminal_size((160, 24)).columns
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _show(once: Callable[[], tuple[str, bool]], every: float | None) -> int:
    while True:
        text, over = once()
        text = cli.printable(text)
        print(f"{CLEAR}{text}" if every is not None and sys.stdout.isatty() else text, flush=True)
        if every is None or over:
            return 0
        time.sleep(max(every, 0.1))


def _is_over(found: Survey) -> bool:
    return not {"running", "queued", "waiting"} & set(found.states.values())


def _job(one: dict[str, Any]) -> str:
    reason = f"({one['job_reason']})" if one["job_reason"] else ""
    return " ".join(filter(None, [one["job"], one["job_state"], reason])) if one["job"] else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
