"""`python -m forge.runs`: all runs, single ones and points of sweeps, in a table; and their tags
and notes.

Examples:
    python -m forge.runs --state failed
    python -m forge.runs sweeps/rates --where model.dim=256 --sort best
    python -m forge.runs tag runs/mine baseline paper
    python -m forge.runs note runs/mine 'the first with the new tokenizer'
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge import cli
from forge.config.numbers import byte_size, time_span
from forge.config.problems import COMMAND_LINE, refusal, short_keys
from forge.launch.sweep import messages
from forge.report import filters
from forge.report.inventory import Entry, differences
from forge.rundir import evaluations
from forge.rundir.annotations import annotate, read_annotations
from forge.rundir.directory import short
from forge.rundir.saved_config import is_run

ABOUT = """All runs below a folder, single ones and points of sweeps: state, steps, last training
loss, best value of run.objective, time since the run last wrote, size, tags, and what differs in
their configs (the options whose value at most half of them share)."""
DROPPED = ("size", "note", "tags", "tasks", "age", "loss", "step", "differs in")
"""Columns that a narrow terminal does not show, the first to go first."""
TEXTS = ("differs in", "note", "tags", "tasks")
TAG = re.compile(r"[\w.:+/-]+")
SORTS: dict[str, Callable[[Entry], Any]] = {
    "name": lambda entry: entry.name,
    "state": lambda entry: entry.run.state,
    "step": lambda entry: entry.progress.step,
    "loss": lambda entry: entry.progress.loss,
    "best": lambda entry: entry.best and entry.best[0],
    "age": lambda entry: entry.age,
    "size": lambda entry: entry.extent.size,
}


def main(argv: Sequence[str] | None = None) -> int:
    """List runs, or tag or note a run; 2 for a path that is no run or folder."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["tag"]:
        return _tag(words[1:])
    if words[:1] == ["note"]:
        return _note(words[1:])
    arguments = filters.runs_parser("forge.runs", ABOUT)
    add = arguments.add_argument
    add("--sort", choices=tuple(SORTS), default="age", help="smallest first; default: age")
    add("--reverse", action="store_true", help="largest first")
    add("--json", action="store_true", help="the table as JSON, numbers in full")
    return _list(cli.parse(arguments, words))


def _list(options: argparse.Namespace) -> int:
    def show() -> int:
        runs, silent = filters.selected_runs(options)
        runs = _sort_runs(runs, options.sort, reverse=options.reverse)
        if options.json:
            text = json.dumps(_rows(runs), indent=1)
        else:
            text = _table(runs, cli.terminal_width()) if runs else "no runs"
        print(cli.printable(text))
        if silent:
            print(f"{messages.NO_ANSWER}: {silent}", file=sys.stderr)
        return 0

    return cli.refuse(show)


def _sort_runs(found: Sequence[Entry], by: str, *, reverse: bool = False) -> list[Entry]:
    """Runs without a value come last either way."""
    value = SORTS[by]
    valued = sorted((e for e in found if value(e) is not None), key=value, reverse=reverse)
    return valued + [entry for entry in found if value(entry) is None]


def _rows(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """A dict a run with the table's columns, numbers in full: age in seconds, size in bytes."""
    differing = differences(found)
    return [
        {
            "path": str(entry.run.path),
            "state": entry.run.state,
            "why": entry.run.why,
            "step": entry.progress.step,
            "of": entry.progress.of,
            "loss": entry.progress.loss,
            "objective": entry.run.objective,
            "best": entry.best and entry.best[0],
            "best_step": entry.best and entry.best[1],
            "age": round(entry.age, 1),
            "size": entry.extent.size,
            "arm": entry.run.point.arm,
            "seed": entry.run.seed,
            "tags": list(entry.annotations.tags),
            "note": entry.annotations.note,
            "tasks": {
                task: {"step": summary["step"], "metrics": summary["metrics"]}
                for task, summary in evaluations.latest(entry.run.path).items()
            },
            "differs": differing[entry],
        }
        for entry in found
    ]


def _tasks(run_dir: Path) -> str:
    """The main metric of each task's last evaluation, with its standard error."""
    shown = []
    for task, summary in evaluations.latest(run_dir).items():
        if (main := evaluations.headline(summary)) is not None:
            _, value, error = main
            shown.append(f"{task} {value:.4f}" + ("" if error is None else f"±{error:.4f}"))
    return " ".join(shown)


def _table(found: Sequence[Entry], width: int | None = None) -> str:
    """A line a run, then the counts by state. width: of the terminal, None without a terminal; a
    narrow terminal shows the most important columns.
    """
    differing, objectives = differences(found), {entry.run.objective for entry in found}
    words = short_keys(
        list(dict.fromkeys(key for options in differing.values() for key in options))
    )
    best = f"best {next(iter(objectives))}" if len(objectives) == 1 else "best"
    cells = [
        ["run", "state", "step", "loss", best, "age", "size", "tasks", "tags", "differs in", "note"]
    ]
    for entry in found:
        now, notes = entry.progress, entry.annotations
        value = "" if entry.best is None else f"{entry.best[0]:.4f}"
        differs = " ".join(f"{words[key]}={text}" for key, text in differing[entry].items())
        cells.append(
            [
                entry.name,
                entry.run.state,
                f"{now.step:,}" + ("" if now.of is None else f"/{now.of:,}"),
                "" if now.loss is None else f"{now.loss:.4f}",
                f"{value} {entry.run.objective}" if value and len(objectives) > 1 else value,
                time_span(entry.age),
                byte_size(entry.extent.size),
                _tasks(entry.run.path),
                " ".join(entry.annotations.tags),
                differs,
                " ".join(notes.note.split()),
            ]
        )
    states = messages.count_states([entry.run.state for entry in found], "run")
    total = byte_size(sum(entry.extent.size for entry in found))
    if width is None:
        return "\n".join([*cli.aligned_lines(cells), "", f"{states}; {total}"])
    lines, dropped = cli.fitted(cells, width, drop=DROPPED, texts=TEXTS)
    lines += ["", f"{states}; {total}"]
    if dropped:
        lines.append(f"not shown here: {', '.join(dropped)}")
    return "\n".join(lines)


def _tag(words: Sequence[str]) -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m forge.runs tag",
        description="Tag a run; forge.runs --tag NAME finds it.",
        epilog="example: python -m forge.runs tag runs/mine baseline paper",
        allow_abbrev=False,
    )
    arguments.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    arguments.add_argument("tags", nargs="+", metavar="NAME", help="a word without spaces")
    arguments.add_argument("--remove", action="store_true", help="take these tags away")
    options = arguments.parse_args(words)

    def tag() -> int:
        for name in options.tags:
            if not TAG.fullmatch(name):
                hint = f"python -m forge.runs tag {options.run} baseline"
                message = "a tag is one word of letters, digits and . : + / - _"
                raise refusal(name, f"{message}.", hint, COMMAND_LINE)
        now = read_annotations(_checked(options.run))
        if options.remove:
            tags = [name for name in now.tags if name not in options.tags]
        else:
            tags = [*now.tags, *options.tags]
        return _write(options.run, tags=tags, note=now.note)

    return cli.refuse(tag)


def _note(words: Sequence[str]) -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m forge.runs note",
        description="Give a run a note in place of the one it has; '' takes it away.",
        epilog="example: python -m forge.runs note runs/mine 'diverged after the warm-up'",
        allow_abbrev=False,
    )
    arguments.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    arguments.add_argument("text", metavar="TEXT", help="in quotes")
    options = arguments.parse_args(words)

    def note() -> int:
        now = read_annotations(_checked(options.run))
        return _write(options.run, tags=now.tags, note=options.text.strip())

    return cli.refuse(note)


def _checked(run_dir: Path) -> Path:
    if not is_run(run_dir):
        lacks = "it has no config.yaml." if run_dir.exists() else "there is no such directory."
        hint = "python -m forge.runs lists the runs that there are"
        raise refusal(str(run_dir), f"{run_dir} is no run: {lacks}", hint, COMMAND_LINE)
    return run_dir


def _write(run_dir: Path, *, tags: Sequence[str], note: str) -> int:
    try:
        annotate(run_dir, tags=tags, note=note)
    except OSError as error:
        message = f"its tags and note cannot be written: {error.strerror or error}."
        raise refusal(str(run_dir), message, "give access to it") from None
    now = read_annotations(run_dir)
    labels = [f"tags {' '.join(now.tags)}"] * bool(now.tags) + [f"note: {now.note}"] * bool(
        now.note
    )
    print(
        cli.printable(f"{short(run_dir.resolve())}: {'; '.join(labels) or 'no tags and no note'}")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
