"""The runs of a report: the points of a sweep, or run directories given one by one."""

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
from forge.launch.sweep.directory import SWEEP, Point, SweepDirectory, examples, find_sweep
from forge.launch.sweep.state import DONE, FAILED, Survey, survey
from forge.rundir import outcome
from forge.rundir.saved_config import is_run, read_plain

if TYPE_CHECKING:
    from forge.report.logs import Log

SEED = "seed"


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run. state: as launch.sweep.state has it. why: it failed. final: metrics of a run that is
    done, and `ended` its last step and why it ended there. higher_is_better: metrics of its
    objective, by their own names.
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
        """None for a point that was never prepared and has no seed of its own."""
        found = self.config.get(SEED, self.point.varied.get(SEED))
        return None if found is None else int(found)

    @property
    def objective(self) -> str | None:
        return self.config.get("run", {}).get("objective")

    @property
    def max_steps(self) -> int | None:
        return self.config.get("train", {}).get("max_steps")

    @cached_property
    def options(self) -> dict[str, Any]:
        """The resolved config by dotted keys; empty for a point that was never prepared."""
        return flat(self.config)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The options as texts that are equal for equal values."""
        return {key: text_of(value) for key, value in self.options.items()}

    @cached_property
    def log(self) -> Log:
        from forge.report.logs import Log  # with numpy, which a list of runs does without

        return Log(self.path)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a report is of. path: of the sweep, None for single runs. commands: what was typed after
    `python -m forge.train`. no_answer: why Slurm could not be asked for its jobs.
    """

    name: str
    runs: list[Run]
    path: Path | None = None
    baseline: str | None = None
    commands: tuple[str, ...] = ()
    no_answer: str = ""


def read(paths: Sequence[Path]) -> Source:
    """One sweep, or one or more runs. Raises ConfigError for anything else."""
    sweeps = [path for path in paths if (path / SWEEP).is_file()]
    problems = [_no_source(path) for path in paths if path not in sweeps and not is_run(path)]
    if sweeps and len(paths) > 1:
        what, fix = "a report is of one sweep, or of runs.", f"python -m forge.report {sweeps[0]}"
        problems.append(Problem(key=str(sweeps[0]), what=what, fix=fix, where=COMMAND_LINE))
    if problems:
        raise ConfigError(problems)
    return _of_sweep(find_sweep(paths[0])) if sweeps else _of_runs(paths)


def runs_of(points: Sequence[Point], found: Survey) -> list[Run]:
    known: dict[str, Any] = {}
    return [_run(point, found.states[point.number], known) for point in points]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every option by its dotted key; the variant of a group is its schema, or the last word of a
    target of its own, under the key of the group.
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


def text_of(value: object) -> str:
    """A value as a text; a number, typed or not, in its shortest form: 0.001, 1e-5, 4."""
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
    found = survey(points)
    runs = runs_of(points, found)
    declared = [run.config.get("sweep", {}).get("ablation", {}).get("baseline") for run in runs]
    return Source(
        name=sweep.name,
        path=sweep.path,
        runs=runs,
        baseline=next((str(name) for name in reversed(declared) if name is not None), None),
        commands=tuple(dict.fromkeys(map(_command, sweep.commands()))),
        no_answer=found.silent,
    )


def _command(kept: Mapping[str, Any]) -> str:
    folders = [word for folder in kept.get("config_dirs", ()) for word in ("--config-dir", folder)]
    return shlex.join([*folders, "-m", *kept["overrides"]])


def _of_runs(paths: Sequence[Path]) -> Source:
    places = list(dict.fromkeys(path.resolve() for path in paths))
    names = [path.name for path in places]
    arms = [path.name if names.count(path.name) == 1 else str(path) for path in places]
    points = [
        Point(number=i, hash="", slug=arm, path=path, overrides=(), arm=arm)
        for i, (path, arm) in enumerate(zip(places, arms, strict=True))
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
        fix=f"give the directory of a sweep, like {examples(path)}, or those of runs",
        where=COMMAND_LINE,
    )
