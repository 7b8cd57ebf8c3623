"""Why a search by Optuna cannot begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from forge.config.launch import Local
from forge.config.problems import ConfigError, Problem
from forge.config.sweeper import Optuna
from forge.launch.optuna.space import Numbers, Space, combination
from forge.launch.sweep.points import Planned, Preflight

TRIED = 256  # trials that are checked before a space is refused
ENOUGH = 32  # of them, where the same is wrong with all
LARGEST_GRID = 20_000
SHOWN = 10


class NoneCanRun(ConfigError):
    """A space of which no point can run. tried: how many were; with `all_of_them` there are no
    more.
    """

    def __init__(self, problems: Sequence[Problem], tried: int, all_of_them: bool) -> None:
        super().__init__(problems)
        self.tried, self.all_of_them = tried, all_of_them

    def __str__(self) -> str:
        which = (
            f"the {self.tried} points of the space"
            if self.all_of_them
            else f"{self.tried} points of the space that were tried"
        )
        lines = [f"none of {which} can run; nothing was started or written."]
        lines += [problem.render(number) for number, problem in enumerate(self.problems[:SHOWN], 1)]
        left = len(self.problems) - SHOWN
        return "\n".join([*lines, f"     and {left} more problems"] if left > 0 else lines)


def check_search(flight: Preflight, section: Optuna, space: Space) -> None:
    """Raises ConfigError when there is nothing to search, or no way to."""
    problems = []
    if not space.params:
        fix = "'optimizer.lr=tag(log, interval(1e-4, 1e-2))', or the same as sweeper.params in an experiment file"
        problems.append(Problem(key="sweeper=optuna", what="there is nothing to search.", fix=fix))
    if flight.sweep.ablation.arms or flight.sweep.ablation.seeds:
        what, fix = (
            "an ablation runs all of its arms and seeds, and leaves nothing to choose.",
            "sweeper=basic, or leave sweep.ablation out",
        )
        problems.append(Problem(key="sweeper=optuna", what=what, fix=fix))
    if isinstance(flight.launch, Local) and section.n_jobs > 1:
        what = "on this machine launch.jobs says how many trials run at a time."
        problems.append(
            Problem(
                key=f"sweeper.n_jobs={section.n_jobs}",
                what=what,
                fix=f"launch.jobs={section.n_jobs}",
            )
        )
    endless = [f"{key}={param}" for key, param in space.params.items() if param.count is None]
    if section.sampler == "grid" and endless:
        what, fix = (
            f"{endless[0]} has no values to go through one by one.",
            "range(START, STOP, STEP), or sweeper.sampler=tpe",
        )
        problems.append(Problem(key="sweeper.sampler=grid", what=what, fix=fix))
    elif section.sampler == "grid" and (space.size or 0) > LARGEST_GRID:
        what = (
            f"the grid has {space.size:,} points, and at most {LARGEST_GRID:,} can be gone through."
        )
        problems.append(
            Problem(
                key="sweeper.sampler=grid", what=what, fix="fewer values, or sweeper.sampler=tpe"
            )
        )
    if problems:
        raise ConfigError(problems)


def first_that_runs(flight: Preflight, space: Space) -> Planned:
    """A trial of the space that can run, which nearly always is the first that is tried. Raises
    ConfigError when none is found.
    """
    refused: list[dict[tuple[str, str], Problem]] = []
    for values in space.samples(TRIED):
        try:
            return flight.check([combination(space, values)])[0]
        except ConfigError as error:
            problems = [_as_typed(problem, space) for problem in error.problems]
            refused.append({(problem.option, problem.what): problem for problem in problems})
        if len(refused) == ENOUGH and _alike(refused):
            break
    if _alike(refused):
        raise ConfigError(list(refused[0].values()))
    distinct = {place: problem for problems in refused for place, problem in problems.items()}
    raise NoneCanRun(list(distinct.values()), len(refused), space.size == len(refused))


def _alike(refused: Sequence[Mapping[tuple[str, str], Problem]]) -> bool:
    """Whether the same is wrong with all, so that it is wrong with what they have in common."""
    return all(problems.keys() == refused[0].keys() for problems in refused)


def _as_typed(problem: Problem, space: Space) -> Problem:
    """What is wrong with any value of an interval is wrong with the interval."""
    param = space.params.get(problem.option)
    if (
        not isinstance(param, Numbers)
        or param.step is not None
        or " is an integer;" not in problem.what
    ):
        return problem
    whole = Numbers(low=round(param.low), high=round(param.high), step=1, log=param.log)
    what = f"{problem.option} is an integer, and an interval has all numbers between its ends."
    return replace(
        problem, key=f"{problem.option}={param}", what=what, fix=f"{problem.option}={whole}"
    )
