"""`python -m forge.clean`: list runs by age, failure, size, and remove them; never one at work.

Examples:
    python -m forge.clean --failed --older-than 7d
    python -m forge.clean sweeps/rates --larger-than 1GB --where model.dim=256
    python -m forge.clean runs/mine --older-than 0s --yes
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge import cli
from forge.config.numbers import SIZES, SPANS, byte_size, counted, read_amount, time_span
from forge.config.problems import COMMAND_LINE, ConfigError, refusal
from forge.launch.sweep import messages
from forge.launch.sweep.directory import LOCK, POINTS
from forge.launch.sweep.state import FAILED, PARTIAL, QUEUED, RUNNING, WAITING
from forge.report import filters
from forge.report.inventory import FOLDERS, Entry
from forge.rundir.extent import extent
from forge.rundir.lock import DirectoryInUse, Lock, in_use
from forge.rundir.untrusted import leads_out

ABOUT = """List the runs below a folder for which all of these are true, and remove them once you
have said yes: the whole directory of each, with its checkpoints. A run that is at work or queued is
never removed, nor one that a link leads to."""
FRESH = 600.0  # seconds since the last write of a run after which the run counts as at rest
SHOWN = 20  # runs of a long list, beside the last line with the sum


def main(argv: Sequence[str] | None = None) -> int:
    """Remove runs; 0 once removed, or kept on request; 1 for a run left, 2 without an answer."""
    arguments = filters.runs_parser("forge.clean", ABOUT)
    add = arguments.add_argument
    add("--failed", action="store_true", help="that failed")
    age = f"that wrote nothing for so long: 7d, 12h ({', '.join(SPANS)})"
    add("--older-than", metavar="TIME", help=age)
    size = f"that are larger: 1GB, 500MB ({', '.join(SIZES)})"
    add("--larger-than", metavar="SIZE", help=size)
    add("--yes", action="store_true", help="remove them without asking")
    options = cli.parse(arguments, argv)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    age = _amount("--older-than", options.older_than, SPANS, "7d")
    size = _amount("--larger-than", options.larger_than, SIZES, "1GB")
    conditions = (age is not None, size is not None, options.failed, options.state, options.where)
    if not any((*conditions, options.tag)):
        hint = "for example --failed, or --older-than 7d; all of them: --older-than 0s"
        raise refusal("forge.clean", "which runs? Nothing says so.", hint, COMMAND_LINE)
    runs, silent = filters.selected_runs(options)
    if silent:
        message = f"{silent} A run whose job waits could be among these runs."
        raise refusal("forge.clean", message, "try again where Slurm answers")
    if options.failed:
        runs = [entry for entry in runs if entry.run.state == FAILED]
    runs = _old_and_large(runs, age, size)
    folders = options.folders or [Path(folder) for folder in FOLDERS]
    busy = {entry: why for entry in runs if (why := _linked(entry, folders) or _busy(entry))}
    runs = sorted((e for e in runs if e not in busy), key=lambda entry: -entry.extent.size)
    for entry, why in busy.items():
        print(cli.printable(f"left, for {why}: {entry.name}"))
    if not runs:
        print("no run to remove")
        return 0
    print(cli.printable(_table(runs)))
    if not options.yes and not _agreed(len(runs)):
        print("nothing was removed")
        return 0
    return _remove_all(runs)


def _old_and_large(runs: Sequence[Entry], age: float | None, size: float | None) -> list[Entry]:
    """The runs of this age, in seconds, at least, and above this size in bytes."""
    if age is not None:
        runs = [entry for entry in runs if entry.age >= age]
    if size is not None:
        runs = [entry for entry in runs if entry.extent.size > size]
    return [*runs]


def _table(found: Sequence[Entry]) -> str:
    """A table of the largest runs, and the sum of all runs."""
    cells = [["run", "state", "step", "age", "size", "tags"]]
    for entry in found[:SHOWN]:
        tags = " ".join(entry.annotations.tags)
        step, age = f"{entry.progress.step:,}", time_span(entry.age)
        size = byte_size(entry.extent.size)
        cells.append([entry.name, entry.run.state, step, age, size, tags])
    smaller = len(found) - SHOWN
    lines = cli.aligned_lines(cells) + ([f"and {smaller:,} smaller ones"] if smaller > 0 else [])
    states = messages.count_states([entry.run.state for entry in found], "run")
    return "\n".join([*lines, "", f"{states}; {byte_size(_size(found))}"])


def _agreed(n: int) -> bool:
    """Raises ConfigError where nobody can be asked."""
    if not sys.stdin.isatty():
        message = (
            "nothing was removed: there is no terminal to ask on whether to remove these runs."
        )
        raise refusal("--yes", message, "give --yes where that is meant", COMMAND_LINE)
    try:
        answer = input(f"Remove {'this run' if n == 1 else f'these {n:,} runs'} for ever? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _remove_all(found: Sequence[Entry]) -> int:
    removed = []
    for entry in found:
        try:
            remove(entry)
        except (ConfigError, DirectoryInUse, OSError) as error:
            print(cli.printable(f"left: {entry.name}: {error}"), file=sys.stderr)
        else:
            removed.append(entry)
            if folder := _elsewhere(entry):
                print(cli.printable(f"its checkpoints stay in {folder}: {entry.name}"))
    print(f"removed {counted(len(removed), 'run')}, {byte_size(_size(removed))}")
    return 0 if len(removed) == len(found) else 1


def remove(entry: Entry) -> None:
    """Remove a run under its lock, renamed first: half a run is never taken for a run.

    Raises DirectoryInUse for a run at work, ConfigError for links out of the run, and OSError.
    """
    path = entry.run.path
    with Lock(path, advice="It is left").acquire(patience=0.0):
        if extent(path).written != entry.extent.written:
            raise DirectoryInUse(f"{path} has changed since it was listed. It is left")
        aside = path.with_name(f".{path.name}.removed")
        path.rename(aside)
    shutil.rmtree(aside)


def _linked(entry: Entry, folders: Sequence[Path]) -> str:
    """The reason to leave a run reached through a link inside these folders; '' without a link.

    A folder of runs may itself be a link; a run named by a link is behind the link.
    """
    path = entry.run.path
    for folder in folders:
        real = folder.resolve()
        if path.is_relative_to(real) and not (path == real and folder.is_symlink()):
            return ""
    return "a link leads to it, and it is removed by its own path only"


def _busy(entry: Entry) -> str:
    """The reason why a run may be at work, or soon; '' for a removable run."""
    state, sweep = entry.run.state, entry.run.path.parent.parent
    if state in (RUNNING, QUEUED):
        return f"it is {state}"
    if state == WAITING and entry.age < FRESH:
        return "it has only just been made"
    if state == PARTIAL and entry.age < FRESH:  # on a file system without locks it may be running
        return "it wrote a moment ago and has not ended"
    if entry.run.path.parent.name == POINTS and in_use(sweep, LOCK):
        return "a command is at work on its sweep"
    return ""


def _elsewhere(entry: Entry) -> str:
    """The folder of a run's checkpoints outside of the run directory; '' for a folder inside."""
    folder = str((entry.run.config.get("checkpoint") or {}).get("dir") or "")
    return folder if leads_out(folder) else ""


def _size(found: Sequence[Entry]) -> int:
    return sum(entry.extent.size for entry in found)


def _amount(flag: str, text: str | None, units: Mapping[str, float], example: str) -> float | None:
    if text is None:
        return None
    try:
        return read_amount(text, units)
    except ValueError as error:
        raise refusal(
            f"{flag} {text}", f"it takes {error}.", f"{flag} {example}", COMMAND_LINE
        ) from None


if __name__ == "__main__":
    sys.exit(main())
