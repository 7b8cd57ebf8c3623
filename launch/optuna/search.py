"""sweeper=optuna: trials that Optuna chooses by what those before have reached, each run as a point
of the sweep.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial

from forge.compose.composition import compose
from forge.config.hydra_names import translate
from forge.config.launch import Local, Slurm
from forge.config.objectives.base import is_higher_better
from forge.config.problems import ConfigError, Problem
from forge.config.sweeper import Optuna
from forge.launch.jobs import FOLDER
from forge.launch.optuna.space import Space, count, read_space, space_in_words
from forge.launch.optuna.trials import OVERRIDES, POINT, REASON, Trials
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import messages
from forge.launch.sweep.command import RETRY, Command
from forge.launch.sweep.directory import Point
from forge.launch.sweep.expand import key_as_typed
from forge.launch.sweep.messages import print_line
from forge.launch.sweep.place import own_place
from forge.launch.sweep.preflight import MOST, Planned, Preflight
from forge.launch.sweep.state import (
    CANCELLED,
    DONE,
    FAILED,
    PARTIAL,
    QUEUED,
    RUNNING,
    WAITING,
    survey,
)
from forge.rundir import outcome
from forge.rundir.directory import short
from forge.rundir.files import read_json
from forge.rundir.identity import identity

POLL = 2.0  # seconds between looks at trials at work elsewhere
ROUNDS = 3  # most starts of a trial stopped by anything but the user
TRIED = 128  # trials checked before a space is refused
SHOWN = 10  # problems of a space
NOT_OF_A_RUN = ("sweep.", "sweeper.", "launch.jobs.")


def run_search(flight: Preflight, execute: Callable[[Command], int]) -> int:
    """Run trials up to sweeper.n_trials, trials of earlier commands included; return the exit code.

    execute: runs a command until its points have ended. Raises ConfigError before anything is
    started or written.
    """
    section, launch = flight.sweeper, flight.launch
    assert isinstance(section, Optuna)
    space, first = check_search(flight)
    flight.place = own_place(flight, [first], space.params, space.fixed)
    config, world = first.resolution.config, first.resolution.world
    messages.print_warnings([first.resolution])
    jobs = launch.jobs if isinstance(launch, Local) else section.n_jobs
    if isinstance(launch, Slurm) and launch.dry_run:
        return execute(Batch(flight, [first] * jobs))
    objective = str(config.run.objective)
    trials = Trials(
        flight.place,
        space,
        identity(compose(space.fixed, config_dirs=flight.config_dirs).typed()),
        objective=objective,
        direction=section.direction or direction_of(objective),
        sampler=section.sampler,
        seed=config.seed if section.seed is None else section.seed,
    )
    if isinstance(launch, Slurm):
        sizes, folder = [(flight.place, world.size)] * jobs, flight.place
        slurm.check_accepted(sizes, launch, name=folder.name, folder=folder / FOLDER)
    total = section.n_trials
    if section.sampler == "grid":
        total = min(total, space.size or 0)
    with Command(flight, []).open():
        trials.begin(retry=flight.sweep.retry)
        return Search(flight, trials, execute, total=total, jobs=jobs).run()


def check_search(flight: Preflight) -> tuple[Space, Planned]:
    """The space of a search, and a runnable trial of the space. Raises ConfigError."""
    space = read_space(
        flight.overrides, flight.sweeper.params, lambda: flight.library, flight.written_at
    )
    if problems := list(_problems(flight, space)):
        raise ConfigError(problems)
    return space, first_that_runs(flight, space)


def direction_of(objective: str) -> str:
    return "maximize" if is_higher_better(objective) else "minimize"


def first_that_runs(flight: Preflight, space: Space) -> Planned:
    """A runnable trial of the space: nearly always the first. Raises ConfigError."""
    refused: list[dict[tuple[str, str], Problem]] = []
    for values in space.samples(TRIED):
        try:
            return flight.check([space.point(values)])[0]
        except ConfigError as error:
            problems = [_of_interval(problem, space) for problem in error.problems]
            refused.append({(problem.option, problem.what): problem for problem in problems})
    problems_by_option = {
        location: problem for problems in refused for location, problem in problems.items()
    }
    if problems_by_option.keys() == refused[0].keys():
        raise ConfigError(list(problems_by_option.values()))  # the common overrides are at fault
    tried = "points of the space that were tried" if space.size != len(refused) else "points"
    message = f"none of {len(refused)} {tried} can run; what is wrong with them is below."
    summary = Problem("sweeper=optuna", message, "another space")
    raise ConfigError([summary, *problems_by_option.values()][: 1 + SHOWN])


def _problems(flight: Preflight, space: Space) -> Iterator[Problem]:
    section, ablation, key = flight.sweeper, flight.sweep.ablation, "sweeper=optuna"
    assert isinstance(section, Optuna)
    if not space.params:
        hint = "'optimizer.lr=tag(log, interval(1e-4, 1e-2))', or sweeper.params in an experiment"
        yield Problem(key, "there is nothing to search.", hint)
    if ablation.arms or ablation.seeds:
        message = "an ablation runs all of its arms and seeds, and leaves nothing to choose."
        yield Problem(key, message, "sweeper=basic, or leave sweep.ablation out")
    if isinstance(flight.launch, Local) and section.n_jobs > 1:
        message = "on this machine launch.jobs says how many trials run at a time."
        yield Problem(f"sweeper.n_jobs={section.n_jobs}", message, f"launch.jobs={section.n_jobs}")
    if section.sampler != "grid":
        return
    key, other = "sweeper.sampler=grid", "or sweeper.sampler=tpe"
    endless = [
        f"{key}={space_in_words(distribution)}"
        for key, distribution in space.params.items()
        if count(distribution) is None
    ]
    if endless:
        message = f"{endless[0]} has no values to go through one by one."
        yield Problem(key, message, f"range(START, STOP, STEP), {other}")
    elif (size := space.size or 0) > MOST:
        message = f"the grid has {size:,} points, and at most {MOST:,} can be gone through."
        yield Problem(key, message, f"fewer values, {other}")


def _of_interval(problem: Problem, space: Space) -> Problem:
    """A problem of the numbers of an interval, as no integers, reworded for the interval."""
    name, param = problem.option, space.params.get(problem.option)
    if not isinstance(param, FloatDistribution) or " is an integer;" not in problem.what:
        return problem
    integers = IntDistribution(round(param.low), round(param.high), log=param.log)
    message = f"{name} is an integer, and an interval has all numbers between its ends."
    key, hint = f"{name}={space_in_words(param)}", f"{name}={space_in_words(integers)}"
    return replace(problem, key=key, what=message, fix=hint)


class Batch(Command):
    """The trials run together. reasons: causes of failed points, by number."""

    reasons: dict[int, str]

    @contextmanager
    def open(self) -> Iterator[None]:
        self.entries = self.enter(self.planned)
        yield

    def announce(self) -> None:
        pass

    def finish(self, failed: Sequence[tuple[Point, str]], stopped: int = 0) -> int:
        """Keep the reasons for Optuna, and print nothing."""
        self.reasons = {point.number: reason for point, reason in failed}
        return 128 + stopped if stopped else 0


@dataclass(kw_only=True)
class Asked:
    """A runnable trial. rounds: number of starts ended by a stop."""

    trial: Trial
    planned: Planned
    rounds: int = 0


class Search:
    """Ask for trials, run the trials and tell Optuna the results, `jobs` at a time, up to `total`.
    Trials run together are chosen together, so that the seed alone decides on all trials, in
    whatever order trials end.
    """

    def __init__(
        self,
        flight: Preflight,
        trials: Trials,
        execute: Callable[[Command], int],
        *,
        total: int,
        jobs: int,
    ) -> None:
        self.flight, self.trials, self.execute = flight, trials, execute
        self.total, self.jobs = total, jobs
        self.batch = Batch(flight, [])
        self.sweep = self.batch.directory

    def run(self) -> int:
        """Run until all trials have ended, and return the exit code: 1 when any trial has failed,
        now or before, 128+n after a stop by a signal.
        """
        self._announce()
        asked: list[Asked] = []
        code = 0
        while not code and (ended := len(self.trials.known("COMPLETE", "FAIL"))) < self.total:
            number = min(self.total - ended, self.jobs - ended % self.jobs) - len(asked)
            asked += [candidate for _ in range(number) if (candidate := self._ask()) is not None]
            if not asked:
                continue
            self.batch.planned = list(
                {candidate.planned.hash: candidate.planned for candidate in asked}.values()
            )
            code = self.execute(self.batch)
            asked = [
                candidate for candidate in asked if not self._settle(candidate, self.batch.reasons)
            ]
            if any(self._point(candidate)[1] in (RUNNING, QUEUED) for candidate in asked):
                time.sleep(POLL)
        for candidate in asked:
            self.trials.put_back(candidate.trial.number)
        self._finish()
        return code or int(bool(self.trials.known("FAIL")))

    def _ask(self) -> Asked | None:
        """The next trial; None for a trial unable to run, or for a point already run."""
        trial = self.trials.ask()
        combination = self.trials.space.point(trial.params)
        trial.set_user_attr(OVERRIDES, list(combination.overrides[len(self.trials.space.fixed) :]))
        try:
            asked = Asked(trial=trial, planned=self.flight.check([combination])[0])
        except ConfigError as error:
            reasons = [f"{problem.key}: {problem.what}" for problem in error.problems]
            self.trials.fail(trial, "; ".join(reasons))
            lines = [f"     | {text}" for text in str(error).splitlines()[1:]]
            print_line("\n".join([_refused(combination.label), *lines]))
            return None
        point, state = self._point(asked)
        is_retried = self.flight.sweep.retry and state in (FAILED, CANCELLED)
        if point is None or is_retried or (result := self._end(asked, point, state)) is None:
            return asked
        print_line(messages.line(point, "known", result))
        return None

    def _settle(self, asked: Asked, reasons: Mapping[int, str]) -> bool:
        point, state = self._point(asked)
        assert point is not None
        asked.rounds += state in (WAITING, PARTIAL)
        ended = self._end(asked, point, state, reasons.get(point.number, ""))
        if ended is not None and state == DONE and asked.trial.user_attrs.get(REASON):
            print_line(messages.line(point, "FAILED", ended))
        return ended is not None

    def _end(self, asked: Asked, point: Point, state: str, reason: str = "") -> str | None:
        """Tell Optuna the end of a trial, and return the end in a few words; None while running."""
        if state not in (DONE, FAILED, CANCELLED) and asked.rounds < ROUNDS:
            return None
        asked.trial.set_user_attr(POINT, point.number)
        result = outcome.read_result(point.path) if state == DONE else None
        value = result.objective if result is not None else None
        if value is not None and math.isfinite(value):
            self.trials.tell(asked.trial, value)
            return messages.reached(point)
        reason = reason or _reason(point, state, self.trials.objective)
        self.trials.fail(asked.trial, reason)
        return reason

    def _point(self, asked: Asked) -> tuple[Point | None, str]:
        hash = asked.planned.hash
        point = next((point for point in self.sweep.points() if point.hash == hash), None)
        return point, survey([point]).states[point.number] if point else ""

    def _announce(self) -> None:
        path = short(self.sweep.path)
        together = f"; {self.jobs} at a time" if self.jobs > 1 else ""
        print_line(
            f"sweep: {path}   ({self._counted()}{together})\n  searched is {self.trials.space}"
        )
        print_line(f"  watch it with: python -m forge.status {path} --watch")

    def _counted(self) -> str:
        """'12 trials: 4 done, 1 failed, 7 to run'."""
        done, failed = len(self.trials.known("COMPLETE")), len(self.trials.known("FAIL"))
        remaining = max(self.total - done - failed, 0)
        words = ["done"] * done + ["failed"] * failed + ["to run"] * remaining
        return messages.count_states(words, "trial")

    def _finish(self) -> None:
        print_line(f"\nsweep: {short(self.sweep.path)}   ({self._counted()})")
        points = {point.number: point for point in self.sweep.points()}
        failed = self.trials.known("FAIL")
        for trial in failed:
            point, reason = points.get(trial.user_attrs.get(POINT, -1)), trial.user_attrs[REASON]
            label = " ".join(trial.user_attrs[OVERRIDES])
            lines = [f"  {_refused(label)}", f"       {reason}"]
            print_line("\n".join(messages.failures([(point, reason)]) if point else lines))
        if failed and not self.flight.sweep.retry:
            print_line(RETRY)
        if (best := self.trials.best) is not None:
            point, value = points[best.user_attrs[POINT]], f"{best.value:.6g}"
            where = f"{messages.label(point)}; {short(point.path)}"
            print_line(
                f"best: {self.trials.objective} {value}   ({where})\n  {self._command(best)}"
            )

    def _command(self, trial: FrozenTrial) -> str:
        fixed = [
            text
            for text in self.trials.space.fixed
            if not f"{key_as_typed(translate(text)).replace('/', '.')}.".startswith(NOT_OF_A_RUN)
        ]
        folders = [word for folder in self.flight.config_dirs for word in ("--config-dir", folder)]
        added = trial.user_attrs[OVERRIDES]
        return shlex.join(["python", "-m", "forge.train", *folders, *fixed, *added])


def _refused(label: str) -> str:
    return f"#--- {'refused':<9} {label}"


def _reason(point: Point, state: str, objective: str) -> str:
    if state == DONE:
        logged = objective in read_json(point.path / outcome.RESULT)["metrics"]
        return f"{objective} {'is not finite' if logged else 'was never logged'}"
    if state == CANCELLED:
        return "cancelled"
    return messages.cause(point.path, point.code) or f"stopped {ROUNDS} times before its end"
