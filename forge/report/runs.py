"""The runs that a report is of: the points of a sweep, or run directories given one by one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from forge.config.problems import COMMAND_LINE, ConfigError, Problem
from forge.launch.sweep import messages
from forge.launch.sweep.directory import SWEEP, Point, SweepDirectory, examples, find_sweep
from forge.launch.sweep.state import DONE, FAILED
from forge.launch.sweep.survey import survey
from forge.report import flat_config
from forge.report.series import Logged
from forge.rundir import directory
from forge.rundir.stored import is_run

LONGEST_NAME = 80  # of several runs; one that is longer gives their number


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run as a report sees it. state: as launch.point_state has it. why: it failed. final:
    metrics of a run that is done.

    ended: the step at which it did, and the reason, of one that is done.
    """

    point: Point
    state: str
    why: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    objective: str | None = None
    ended: tuple[int, str] | None = None

    @property
    def path(self) -> Path:
        return self.point.path

    @property
    def seed(self) -> int | None:
        """Of weights and data; None for a point that was never prepared and has none of its own."""
        found = self.config.get(flat_config.SEED, self.point.varied.get(flat_config.SEED))
        return None if found is None else int(found)

    @cached_property
    def options(self) -> flat_config.Settings:
        """The resolved config by flat keys; empty for a point that was never prepared."""
        return flat_config.flat(self.config)

    @cached_property
    def numbers(self) -> flat_config.Settings:
        """The options whose values are numbers, each in its shortest form."""
        found = {
            key: flat_config.number_text(value)
            for key, value in flat_config.options(self.config).items()
            if not isinstance(value, str)
        }
        return {key: text for key, text in found.items() if text is not None}

    @cached_property
    def logged(self) -> Logged:
        """Its curves."""
        return Logged(self.path)

    @property
    def step(self) -> int:
        """The last step logged."""
        return self.logged.last_step

    @property
    def of_steps(self) -> int | None:
        """The steps it is to make."""
        return self.config.get("train", {}).get("max_steps")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a report was asked of. path: the sweep's directory, None for single runs. baseline: the
    arm that the sweep itself names.

    commands: what is typed for it after `python -m forge.train`, each once. silent: why Slurm could
    not be asked for the state of its jobs, where it could not.
    """

    name: str
    runs: list[Run]
    path: Path | None = None
    baseline: str | None = None
    commands: tuple[str, ...] = ()
    silent: str = ""


def read(paths: Sequence[Path]) -> Source:
    """One sweep, or one or more runs. Raises ConfigError for anything else, with all that is wrong."""
    sweeps = [path for path in paths if (path / SWEEP).is_file()]
    problems = [_problem(path) for path in paths if path not in sweeps and not is_run(path)]
    if sweeps and len(paths) > 1:
        what = "a report is of one sweep, or of runs."
        problems.append(
            Problem(
                key=str(sweeps[0]),
                what=what,
                fix=f"python -m forge.report {sweeps[0]}",
                where=COMMAND_LINE,
            )
        )
    if problems:
        raise ConfigError(problems)
    return _of_sweep(find_sweep(paths[0])) if sweeps else _of_runs(paths)


def _of_sweep(sweep: SweepDirectory) -> Source:
    points = sweep.points()
    found = survey(points)
    runs = [_run(point, found.states[point.number]) for point in points]
    declared = [run.config.get("sweep", {}).get("ablation", {}).get("baseline") for run in runs]
    return Source(
        name=sweep.name,
        path=sweep.path,
        runs=runs,
        baseline=next((str(name) for name in reversed(declared) if name is not None), None),
        commands=tuple(dict.fromkeys(map(_command, sweep.commands()))),
        silent=found.silent,
    )


def _command(kept: Mapping[str, Any]) -> str:
    """What to type for the same points."""
    folders = [word for folder in kept.get("config_dirs", ()) for word in ("--config-dir", folder)]
    return shlex.join([*folders, "-m", *kept["overrides"]])


def _of_runs(paths: Sequence[Path]) -> Source:
    found = list(dict.fromkeys(path.resolve() for path in paths))
    names = [path.name for path in found]
    arms = [path.name if names.count(path.name) == 1 else str(path) for path in found]
    named = enumerate(zip(found, arms, strict=True))
    points = [
        Point(number=i, hash="", slug=arm, path=path, overrides=(), arm=arm)
        for i, (path, arm) in named
    ]
    states = survey(points).states
    name = " against ".join(arms)
    name = name if len(name) <= LONGEST_NAME else f"{len(arms)} runs"
    return Source(name=name, runs=[_run(point, states[point.number]) for point in points])


def _run(point: Point, state: str) -> Run:
    if not is_run(point.path):
        return Run(
            point=point,
            state=state,
            why=messages.cause(point.path, point.code) if state == FAILED else "",
        )
    try:
        config = flat_config.read(point.path)
        result = directory.finished(point.path) if state == DONE else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Run(point=point, state=FAILED, why=str(error))
    objective = config.get("run", {}).get("objective")
    if result is None:
        return Run(
            point=point,
            state=state,
            config=config,
            objective=objective,
            why=_why(point) if state == FAILED else "",
        )
    known = {
        **result.metrics,
        **(
            {objective: result.objective}
            if objective is not None and result.objective is not None
            else {}
        ),
    }
    final = {
        name: float(value)
        for name, value in known.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return Run(
        point=point,
        state=state,
        config=config,
        objective=objective,
        final=final,
        ended=(result.step, result.reason),
    )


def _why(point: Point) -> str:
    """Why a run failed, in one line."""
    result = directory.read_result(point.path)
    return messages.cause(point.path, point.code) or (
        f"it ended as {result.status}: {result.reason}" if result else ""
    )


def _problem(path: Path) -> Problem:
    what = (
        f"it has neither a {SWEEP} nor a config.yaml."
        if path.exists()
        else "there is no such directory."
    )
    fix = f"give the directory of a sweep, like {examples(path)}, or those of runs"
    return Problem(
        key=str(path),
        what=f"{path} is neither a sweep nor a run: {what}",
        fix=fix,
        where=COMMAND_LINE,
    )
