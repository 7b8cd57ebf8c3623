"""The flags of `forge.runs` and `forge.clean` for choosing among the runs of a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from forge import cli
from forge.launch.sweep import state
from forge.report.inventory import FOLDERS, Entry, find_runs, where

STATES = (
    state.WAITING,
    state.QUEUED,
    state.RUNNING,
    state.PARTIAL,
    state.DONE,
    state.FAILED,
    state.CANCELLED,
)


def runs_parser(prog: str, description: str) -> cli.Parser:
    """A parser of folders and of --state, --where and --tag."""
    result = cli.Parser(prog, description)
    add = result.add_argument
    folders = f"folders of runs and sweeps, or runs; default: {' and '.join(FOLDERS)}"
    add("folders", nargs="*", type=Path, metavar="FOLDER", help=folders)
    several = {"action": "append", "default": []}
    add("--state", choices=STATES, help="in this state; several: any of them", **several)
    options = "whose config has this, like model.dim=256; several: all of them; != for all others"
    add("--where", metavar="KEY=VALUE", help=options, **several)
    add("--tag", metavar="NAME", help="with this tag; several: all of them", **several)
    return result


def selected_runs(options: argparse.Namespace) -> tuple[list[Entry], str]:
    """The runs selected by the options, and why Slurm could not be asked. Raises ConfigError."""
    candidates, silent = find_runs(options.folders)
    selected = [
        entry
        for entry in where(candidates, options.where)
        if (not options.state or entry.run.state in options.state)
        and (not options.tag or set(options.tag) <= set(entry.annotations.tags))
    ]
    return selected, silent
