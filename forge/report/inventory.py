"""The runs in a folder, single runs and points of sweeps: search, filters, and differences."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal
from forge.config.run import Run as RunSection
from forge.config.sweep import Sweep
from forge.launch.sweep.directory import POINTS, SWEEP, Point, SweepDirectory
from forge.launch.sweep.results import is_best_high
from forge.launch.sweep.state import survey
from forge.report.grouping import differing
from forge.report.runs import Run, runs_of, shortest_text
from forge.rundir import versions
from forge.rundir.annotations import Annotations, read_annotations
from forge.rundir.directory import short
from forge.rundir.extent import Extent, extent
from forge.rundir.outcome import read_result
from forge.rundir.progress import Progress, best_logged, progress
from forge.rundir.saved_config import is_run

FOLDERS = (RunSection().root, Sweep().root)
"""Where runs are, unless told otherwise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A run of the list; the contents of its files are read on first use."""

    run: Run

    @property
    def name(self) -> str:
        return short(self.run.path)

    @cached_property
    def progress(self) -> Progress:
        return progress(self.run.path, config=self.run.config)

    @cached_property
    def best(self) -> tuple[float, int] | None:
        """The best value of the run's objective, and the step."""
        metric = self.run.objective
        if metric is None:
            return None
        result = read_result(self.run.path)
        metrics = result.higher_is_better if result else ()
        sweeper = self.run.config.get("sweeper") or {}
        return best_logged(self.run.path, metric, higher=is_best_high(metric, metrics, [sweeper]))

    @cached_property
    def extent(self) -> Extent:
        return extent(self.run.path)

    @property
    def age(self) -> float:
        """Seconds since the run last wrote."""
        return max(time.time() - self.extent.written, 0.0)

    @cached_property
    def annotations(self) -> Annotations:
        return read_annotations(self.run.path)

    @cached_property
    def derived(self) -> frozenset[str]:
        """The derived options of the run."""
        try:
            content = versions.read_config_part(
                self.run.path, "derived", versions.number_in_force(self.run.path)
            )
            return frozenset(str(option["key"]) for option in content)
        except (OSError, ValueError, KeyError, TypeError):
            return frozenset()


def find_runs(folders: Sequence[Path]) -> tuple[list[Entry], str]:
    """The runs below folders, by name, and why Slurm could not be asked for their jobs.

    Without folders, the runs below FOLDERS. Raises ConfigError.
    """
    for folder in folders:
        if not folder.is_dir():
            hint = "give a folder of runs or sweeps, or a run"
            raise refusal(str(folder), "there is no such directory.", hint, COMMAND_LINE)
    run_dirs = [path for folder in folders or map(Path, FOLDERS) for path in _below(folder)]
    points = [
        replace(point, number=number)
        for number, point in enumerate(_points(sorted(dict.fromkeys(run_dirs))))
    ]
    surveyed = survey(points)
    return [Entry(run=run) for run in runs_of(points, surveyed)], surveyed.silent


def where(found: Sequence[Entry], conditions: Sequence[str]) -> list[Entry]:
    """The entries meeting every KEY=VALUE or KEY!=VALUE condition.

    Raises ConfigError for a key missing in all runs.
    """
    options = dict.fromkeys(name for entry in found for name in entry.run.texts)
    for text in conditions:
        key, equals, value = text.partition("=")
        unequal, key = key.endswith("!"), key.removesuffix("!")
        if not equals or (options and key not in options):
            message = f"no run here has an option {key}." if equals else "it is no KEY=VALUE."
            meant = did_you_mean(closest(key, options))
            hint = meant or "for example --where model.dim=256"
            raise refusal(f"--where {text}", message, hint, COMMAND_LINE)
        value_text = shortest_text(value).casefold()
        found = [
            entry
            for entry in found
            if (entry.run.texts.get(key, "").casefold() == value_text) != unequal
        ]
    return list(found)


def differences(found: Sequence[Entry]) -> dict[Entry, dict[str, str]]:
    """By run, the options with a value shared by at most half of the runs.

    Derived options are left out.
    """
    keys = differing([entry.run.texts for entry in found], seeds=True)
    counts = {key: Counter(entry.run.texts.get(key) for entry in found) for key in keys}
    return {
        entry: {
            key: value
            for key in keys
            if (value := entry.run.texts.get(key)) is not None
            and 2 * counts[key][value] <= len(found)
            and key not in entry.derived
        }
        for entry in found
    }


def _below(folder: Path) -> Iterator[Path]:
    """The run directories at and below a folder, links to directories not followed."""
    if is_run(folder):
        yield folder.resolve()
        return
    for parent, folders, _ in os.walk(folder):
        runs = {name for name in folders if is_run(Path(parent, name))}
        yield from (Path(parent, name).resolve() for name in runs)
        folders[:] = [name for name in folders if name not in runs and name[:1] != "."]


def _points(places: Sequence[Path]) -> Iterator[Point]:
    """For each run directory, its point in the ledger of a sweep, or a single point."""
    sweeps: dict[Path, dict[Path, Point]] = {}
    for path in places:
        sweep = path.parent.parent
        if sweep not in sweeps:
            is_sweep = path.parent.name == POINTS and (sweep / SWEEP).is_file()
            points = SweepDirectory(sweep).points() if is_sweep else []
            sweeps[sweep] = {point.path: point for point in points}
        single = Point(number=0, hash="", slug=path.name, path=path, overrides=())
        yield sweeps[sweep].get(path, single)
