"""The runs of a report: the points of a sweep, or single run directories."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.problems import COMMAND_LINE, ConfigError, Problem, shown
from forge.launch.sweep import messages
from forge.launch.sweep.directory import SWEEP, Point, SweepDirectory, example_sweeps, find_sweep
from forge.launch.sweep.state import DONE, FAILED, Survey, survey
from forge.rundir import outcome
from forge.rundir.saved_config import is_run, read_plain

if TYPE_CHECKING:
    from forge.report.logs import Log

SEED = "seed"


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run. state: a state of launch.sweep.state. why: the reason of a failure.

    final: metrics of a finished run. ended: its last step and the reason of its end.
    higher_is_better: metrics of its objective, by the objective's names.
    """

    point: Point
    state: str
    why: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    ended: tuple[int, str] | None = None
    higher_is_better: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.point.path

    @property
    def seed(self) -> int | None:
        """The seed; None for a point never prepared and without a varied seed."""
        value = self.config.get(SEED, self.point.varied.get(SEED))
        return None if value is None else int(value)

    @property
    def objective(self) -> str | None:
        return self.config.get("run", {}).get("objective")

    @property
    def max_steps(self) -> int | None:
        return self.config.get("train", {}).get("max_steps")

    @cached_property
    def options(self) -> dict[str, Any]:
        """The resolved config by dotted keys; empty for a point never prepared."""
        return flat(self.config)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The options as texts, equal for equal values."""
        return {key: shortest_text(value) for key, value in self.options.items()}

    @cached_property
    def log(self) -> Log:
        from forge.report.logs import Log  # imports numpy, unneeded for a list of runs

        return Log(self.path)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a report: a sweep, or single runs. path: of the sweep, None for single runs.

    commands: the typed arguments of `python -m forge.train`. no_answer: why Slurm could not be
    asked for its jobs. plan: question, hypothesis and decision rule as first stated.
    """

    name: str
    runs: list[Run]
    path: Path | None = None
    baseline: str | None = None
    commands: tuple[str, ...] = ()
    no_answer: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)


def read_source(paths: Sequence[Path]) -> Source:
    """Read a sweep, or one or more runs. Raises ConfigError for all other paths."""
    sweeps = [path for path in paths if (path / SWEEP).is_file()]
    problems = [_no_source(path) for path in paths if path not in sweeps and not is_run(path)]
    if sweeps and len(paths) > 1:
        text, hint = "a report is of one sweep, or of runs.", f"python -m forge.report {sweeps[0]}"
        problems.append(Problem(key=str(sweeps[0]), what=text, fix=hint, where=COMMAND_LINE))
    if problems:
        raise ConfigError(problems)
    return _of_sweep(find_sweep(paths[0])) if sweeps else _of_runs(paths)


def runs_of(points: Sequence[Point], found: Survey) -> list[Run]:
    loaded: dict[str, Any] = {}
    return [_run(point, found.states[point.number], loaded) for point in points]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every option by its dotted key.

    The key of a group has the group's variant: the schema's name, or the last word of a user's
    target.
    """
    values: dict[str, Any] = {}
    variant = config.get("_target_") or config.get("_type_")
    if variant is not None:
        values[prefix.rstrip(".")] = str(variant).rpartition(".")[2]
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{prefix}{key}.")
        elif key not in ("_type_", "_target_"):
            values[f"{prefix}{key}"] = value
    return values


def shortest_text(value: object) -> str:
    """The text of a value, typed or not: a number in its shortest form (0.001, 1e-5, 4), a truth
    value as true or false.
    """
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower()
    if isinstance(value, str) and not value[:1].isalpha():
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            return value
    if isinstance(value, float):
        return re.sub(r"(e-?)\+?0*", r"\1", str(value)).removesuffix(".0")
    return shown(value)


def _of_sweep(sweep: SweepDirectory) -> Source:
    points = sweep.points()
    surveyed = survey(points)
    runs = runs_of(points, surveyed)
    declared = [run.config.get("sweep", {}).get("ablation", {}).get("baseline") for run in runs]
    return Source(
        name=sweep.name,
        path=sweep.path,
        runs=runs,
        baseline=next((str(name) for name in reversed(declared) if name is not None), None),
        commands=tuple(dict.fromkeys(map(_command, sweep.commands()))),
        no_answer=surveyed.silent,
        plan=sweep.plan(),
    )


def _command(kept: Mapping[str, Any]) -> str:
    folders = [word for folder in kept.get("config_dirs", ()) for word in ("--config-dir", folder)]
    return shlex.join([*folders, "-m", *kept["overrides"]])


def _of_runs(paths: Sequence[Path]) -> Source:
    run_dirs = list(dict.fromkeys(path.resolve() for path in paths))
    names = [path.name for path in run_dirs]
    arms = [path.name if names.count(path.name) == 1 else str(path) for path in run_dirs]
    points = [
        Point(number=i, hash="", slug=arm, path=path, overrides=(), arm=arm)
        for i, (path, arm) in enumerate(zip(run_dirs, arms, strict=True))
    ]
    name = " against ".join(arms) if len(arms) < 3 else f"{len(arms)} runs"
    return Source(name=name, runs=runs_of(points, survey(points)))


def _run(point: Point, state: str, known: dict[str, Any]) -> Run:
    why = messages.cause(point.path, point.code) if state == FAILED else ""
    if not is_run(point.path):
        return Run(point=point, state=state, why=why)
    try:
        config = read_plain(point.path, known)
        result = outcome.read_result(point.path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Run(point=point, state=FAILED, why=str(error))
    run = Run(point=point, state=state, config=config, why=why)
    if state == FAILED and result and not why:
        return replace(run, why=f"it ended as {result.status}: {result.reason}")
    if state != DONE or result is None:
        return run
    values = {**result.metrics, str(run.objective): result.objective}
    final = {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    ended, higher = (result.step, result.reason), result.higher_is_better
    return replace(run, final=final, ended=ended, higher_is_better=higher)


def _no_source(path: Path) -> Problem:
    lacks = (
        f"it has neither a {SWEEP} nor a config.yaml"
        if path.exists()
        else "there is no such directory"
    )
    return Problem(
        key=str(path),
        what=f"{path} is neither a sweep nor a run: {lacks}.",
        fix=f"give the directory of a sweep, like {example_sweeps(path)}, or those of runs",
        where=COMMAND_LINE,
    )
