"""sweeper=optuna: trials that Optuna chooses by what those before have reached, run as the points
of any sweep are.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.compose.composition import chosen, compose
from forge.config.eval import HIGHER_IS_BETTER
from forge.config.launch import Local, Slurm
from forge.config.problems import ConfigError
from forge.config.spelling import ours
from forge.config.sweeper import Optuna
from forge.launch.optuna.grammar import read_space
from forge.launch.optuna.refusal import check_search, first_that_runs
from forge.launch.optuna.setting import Setting, check_installed
from forge.launch.optuna.space import Space, combination
from forge.launch.optuna.study import OVERRIDES, POINT, REASON, Trials
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import messages
from forge.launch.sweep.command import Command
from forge.launch.sweep.directory import Point
from forge.launch.sweep.expand import key_of
from forge.launch.sweep.jobs import FOLDER
from forge.launch.sweep.points import Planned, Preflight
from forge.launch.sweep.state import CANCELLED, DONE, FAILED, PARTIAL, QUEUED, RUNNING, WAITING
from forge.launch.sweep.survey import survey
from forge.rundir import directory
from forge.rundir.directory import short
from forge.rundir.identity import identity
from forge.rundir.stored import read_json

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

POLL = 2.0  # seconds between looks at trials that something else works on
ROUNDS = 3  # times that a trial is started which is stopped, and not by the user
HOW = (
    "sweep.",
    "sweeper.",
    "launch.jobs.",
)  # overrides that say how trials are found, and not what they are


def run(overrides: Sequence[str], flight: Preflight, execute: Callable[[Command], int]) -> int:
    """Trials until there are sweeper.n_trials, those of earlier commands included; the exit code.

    overrides: as typed. flight: of those that are no intervals. execute: runs the points of a
    command until all have ended; its code is above 128 after a signal. Raises ConfigError before
    anything is started or written.
    """
    section = flight.sweeper
    assert isinstance(section, Optuna)
    check_installed(section)
    space, first = searched(overrides, flight)
    for text in dict.fromkeys(f"{w.what} ({w.key}; -> {w.fix})" for w in first.resolution.warnings):
        print(f"warning: {text}", file=sys.stderr)
    jobs = flight.launch.jobs if isinstance(flight.launch, Local) else section.n_jobs
    if isinstance(flight.launch, Slurm) and flight.launch.dry_run:
        return execute(Batch(flight, [first] * jobs))
    objective = str(first.resolution.config.run.objective)
    options = identity(compose(space.fixed, config_dirs=flight.config_dirs).typed())
    seed = first.resolution.config.seed if section.seed is None else section.seed
    setting = Setting(
        objective=objective, direction=section.direction or direction_of(objective), options=options
    )
    trials = Trials(flight.place, space, setting, sampler=section.sampler, seed=seed)
    sweep = Command(flight, [])
    if isinstance(flight.launch, Slurm):
        sizes = [(flight.place, first.resolution.world.size)] * jobs
        slurm.check(sizes, flight.launch, name=flight.place.name, folder=flight.place / FOLDER)
    total = (
        min(section.n_trials, space.size or 0) if section.sampler == "grid" else section.n_trials
    )
    with sweep.open():
        trials.begin(retry=flight.sweep.retry)
        return Search(flight, trials, execute, total=total, jobs=jobs).run()


def searched(overrides: Sequence[str], flight: Preflight) -> tuple[Space, Planned]:
    """The space of a search, and a trial of it that can run. Raises ConfigError where there is no
    such thing.
    """
    section = flight.sweeper
    assert isinstance(section, Optuna)
    flight.overrides = tuple(overrides)
    space = read_space(
        overrides,
        section.params,
        lambda: chosen(flight.overrides, config_dirs=flight.config_dirs)[0].library,
    )
    check_search(flight, section, space)
    return space, first_that_runs(flight, space)


def direction_of(objective: str) -> str:
    """Whether a metric is to be small or large."""
    return "maximize" if objective.rpartition("/")[2] in HIGHER_IS_BETTER else "minimize"


class Batch(Command):
    """The trials that run together, in the directory that the search holds. reasons: why points
    have failed, by number.
    """

    reasons: dict[int, str]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Enter the trials into the ledger."""
        self.entries = self.enter(self.planned)
        yield

    def announce(self) -> None:
        """The search has told where it is."""

    def finish(self, failed: Sequence[tuple[Point, str]], stopped: int = 0) -> int:
        """Keep what is to be told to Optuna, which tells the user in the end."""
        self.reasons = {point.number: reason for point, reason in failed}
        return 128 + stopped if stopped else 0


@dataclass(kw_only=True)
class Asked:
    """A trial that can run. rounds: how often it was started."""

    trial: Trial
    planned: Planned
    rounds: int = 0


class Search:
    """Asks, runs and tells, `jobs` trials at a time, until there are `total`.

    Those that run together are chosen together, so that the same seed gives the same trials
    whichever of them ends first.
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
        self.flight, self.trials, self.execute, self.total, self.jobs = (
            flight,
            trials,
            execute,
            total,
            jobs,
        )
        self.sweep = Command(flight, []).directory

    def run(self) -> int:
        """Until all have ended; the exit code: 1 when any trial has failed, now or before, 128+n
        after a signal has stopped them.
        """
        self._announce()
        command = Batch(self.flight, [])
        batch: list[Asked] = []
        code = 0
        while not code and (ended := len(self.trials.known("COMPLETE", "FAIL"))) < self.total:
            more = min(self.total - ended, self.jobs - ended % self.jobs) - len(batch)
            batch += [asked for _ in range(more) if (asked := self._ask()) is not None]
            if batch:
                command.planned = list(
                    {asked.planned.hash: asked.planned for asked in batch}.values()
                )
                code = self.execute(command)
                batch = [asked for asked in batch if not self._settle(asked, command.reasons)]
                time.sleep(
                    POLL
                    if any(self._point(asked)[1] in (RUNNING, QUEUED) for asked in batch)
                    else 0.0
                )
        for asked in batch:
            self.trials.put_back(asked.trial.number)
        self._finish()
        return code or (1 if self.trials.known("FAIL") else 0)

    def _ask(self) -> Asked | None:
        """The next trial; None when it has ended as it began: it cannot run, or is a point that has
        run already.
        """
        trial = self.trials.ask()
        one = combination(self.trials.space, trial.params)
        trial.set_user_attr(OVERRIDES, list(one.overrides[len(self.trials.space.fixed) :]))
        try:
            asked = Asked(trial=trial, planned=self.flight.check([one])[0])
        except ConfigError as error:
            self.trials.fail(
                trial, "; ".join(f"{problem.key}: {problem.what}" for problem in error.problems)
            )
            print(
                "\n".join(
                    [
                        _refused(one.label),
                        *(f"     | {text}" for text in str(error).splitlines()[1:]),
                    ]
                ),
                flush=True,
            )
            return None
        point, state = self._point(asked)
        retried = (FAILED, CANCELLED) if self.flight.sweep.retry else ()
        if point is None or state in retried or (said := self._ended(asked)) is None:
            return asked
        print(messages.line(point, "known", said), flush=True)
        return None

    def _settle(self, asked: Asked, reasons: Mapping[int, str]) -> bool:
        """Whether a trial has ended that was run; else it is run again. reasons: why points have
        failed, where that is known.
        """
        point, state = self._point(asked)
        assert point is not None
        asked.rounds += state in (WAITING, PARTIAL)
        said = self._ended(asked, reasons.get(point.number, ""))
        if said is not None and state == DONE and asked.trial.user_attrs.get(REASON):
            print(messages.line(point, "FAILED", said), flush=True)
        return said is not None

    def _ended(self, asked: Asked, reason: str = "") -> str | None:
        """Tell Optuna how a trial has ended, and return it in a few words; None when it has not
        ended. reason: why it failed, if known.
        """
        point, state = self._point(asked)
        assert point is not None
        result = directory.read_result(point.path)
        if (
            state == DONE
            and result is not None
            and result.objective is not None
            and math.isfinite(result.objective)
        ):
            asked.trial.set_user_attr(POINT, point.number)
            self.trials.tell(asked.trial, result.objective)
            return messages.reached(point)
        if state not in (DONE, FAILED, CANCELLED) and asked.rounds < ROUNDS:
            return None
        reason = reason or _reason(point, state, self.trials.setting.objective)
        asked.trial.set_user_attr(POINT, point.number)
        self.trials.fail(asked.trial, reason)
        return reason

    def _point(self, asked: Asked) -> tuple[Point | None, str]:
        point = next(
            (point for point in self.sweep.points() if point.hash == asked.planned.hash), None
        )
        return point, survey([point]).states[point.number] if point else ""

    def _announce(self) -> None:
        path = short(self.sweep.path)
        together = f"; {self.jobs} at a time" if self.jobs > 1 else ""
        searched = " ".join(f"{key}={param}" for key, param in self.trials.space.params.items())
        print(f"sweep: {path}   ({self._counted()}{together})\n  searched is {searched}")
        print(f"  watch it with: python -m forge.status {path} --watch", flush=True)

    def _counted(self) -> str:
        """'12 trials: 4 done, 1 failed, 7 to run'."""
        done, failed = len(self.trials.known("COMPLETE")), len(self.trials.known("FAIL"))
        left = max(self.total - done - failed, 0)
        words = [
            f"{count} {word}"
            for count, word in ((done, "done"), (failed, "failed"), (left, "to run"))
            if count
        ]
        count = done + failed + left
        return f"{count} trial{'s' * (count != 1)}: {', '.join(words)}"

    def _finish(self) -> None:
        """Tell how it ended: what failed, and the best."""
        print(f"\nsweep: {short(self.sweep.path)}   ({self._counted()})")
        points = {point.number: point for point in self.sweep.points()}
        failed = self.trials.known("FAIL")
        for trial in failed:
            point, reason = (
                points.get(trial.user_attrs.get(POINT, -1)),
                trial.user_attrs.get(REASON, ""),
            )
            label = " ".join(trial.user_attrs.get(OVERRIDES, []))
            words = (
                messages.failures([(point, reason)])
                if point
                else [f"  {_refused(label)}", f"       {reason}"]
            )
            print("\n".join(words))
        if failed and not self.flight.sweep.retry:
            print("  the same command with sweep.retry=true runs them again")
        best = self.trials.best
        if best is not None:
            point = points[best.user_attrs[POINT]]
            print(
                f"best: {self.trials.setting.objective} {best.value:.6g}   ({messages.label(point)}; {short(point.path)})"
            )
            print(f"  {self._command(best)}")
        sys.stdout.flush()

    def _command(self, trial: FrozenTrial) -> str:
        """What to type for the run of a trial alone."""
        fixed = [
            text
            for text in self.trials.space.fixed
            if not f"{key_of(ours(text)).replace('/', '.')}.".startswith(HOW)
        ]
        folders = [word for folder in self.flight.config_dirs for word in ("--config-dir", folder)]
        return shlex.join(
            ["python", "-m", "forge.train", *folders, *fixed, *trial.user_attrs[OVERRIDES]]
        )


def _refused(label: str) -> str:
    """A line as that of a point, for a trial that cannot be one."""
    return f"#--- {'refused':<9} {label}"


def _reason(point: Point, state: str, objective: str) -> str:
    """Why a trial has no objective, in one line."""
    if state == DONE:
        known = read_json(point.path / directory.RESULT)["metrics"]
        return (
            f"{objective} is not finite" if objective in known else f"{objective} was never logged"
        )
    if state == CANCELLED:
        return "cancelled"
    return messages.cause(point.path, point.code) or f"stopped {ROUNDS} times before its end"
