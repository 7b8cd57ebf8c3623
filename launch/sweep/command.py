"""The points of one command in the directory of their sweep: which are done, which are due, and how
it went.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from forge.compose.portable import portable
from forge.config.problems import ConfigError, Problem
from forge.launch.sweep import messages
from forge.launch.sweep.directory import LOCK, POINTS, Point, SweepDirectory
from forge.launch.sweep.points import Planned, Preflight
from forge.launch.sweep.state import CANCELLED, DONE, FAILED, PARTIAL, QUEUED, RUNNING, WAITING
from forge.launch.sweep.survey import survey
from forge.resolve.resolve import Resolution
from forge.rundir import directory
from forge.rundir.directory import Made, made_now, short
from forge.rundir.lock import Held, Lock

WORDS = {WAITING: "to start", PARTIAL: "to go on", QUEUED: "in the queue", RUNNING: "at work"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A point of the command: as it was checked, as it is in the ledger, and in what state it was
    found.
    """

    planned: Planned
    point: Point
    state: str


class Command:
    """The points of one command in the directory of their sweep."""

    def __init__(self, flight: Preflight, planned: Sequence[Planned]) -> None:
        self.flight, self.planned = flight, planned
        self.directory = SweepDirectory(flight.place)
        self.entries: list[Entry] = []
        self._made: Made | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the directory, which is made where there is none, with all points of the command in
        its ledger. Raises ConfigError.
        """
        path = self.directory.path
        advice = f"Wait for it, or end it: python -m forge.cancel {short(path)}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path, LOCK, advice=advice, apart=(POINTS,)).acquire()
            self.directory.begin(self.flight.overrides, config_dirs=self.flight.config_dirs)
            self.entries = self.enter(self.planned)
        except Held as error:
            what, _, fix = str(error).partition(". ")
            raise ConfigError(
                [Problem(key=f"sweep.name={path.name}", what=f"{what}.", fix=fix)]
            ) from None
        except OSError as error:
            what = f"the directory {path} cannot be written: {error.strerror or error}."
            raise ConfigError(
                [
                    Problem(
                        key=f"sweep.root={path.parent}",
                        what=what,
                        fix="choose another place with sweep.root",
                    )
                ]
            ) from None
        with lock:
            for entry in self.due:
                if entry.state in (FAILED, CANCELLED):
                    self.directory.note("retried", entry.point.number)
            yield

    @property
    def due(self) -> list[Entry]:
        """What is to be started: what has not been, what was stopped, and what failed or was
        cancelled, with sweep.retry.
        """
        return [entry for entry in self.entries if self._is_due(entry.state)]

    def to_start(self) -> list[Planned]:
        """The same before the directory is opened, or made."""
        points = self.directory.points()
        states = survey(points).states
        known = {point.hash: states[point.number] for point in points}
        return [
            planned for planned in self.planned if self._is_due(known.get(planned.hash, WAITING))
        ]

    def _is_due(self, state: str) -> bool:
        return state in (WAITING, PARTIAL) or (
            self.flight.sweep.retry and state in (FAILED, CANCELLED)
        )

    def announce(self) -> None:
        """Where it is, and what is to be done."""
        path = short(self.directory.path)
        again = [entry.point.number for entry in self.due if entry.state in (FAILED, CANCELLED)]
        states = [
            "to run again" if entry.point.number in again else WORDS.get(entry.state, entry.state)
            for entry in self.entries
        ]
        others = len(self.directory.points()) - len(self.entries)
        more = f"; {others} other{'s' * (others != 1)} of earlier commands" if others else ""
        messages.say(f"sweep: {path}   ({messages.counted(states)}{more})")
        if any(entry.state != DONE for entry in self.entries):
            messages.say(f"  watch it with: python -m forge.status {path} --watch")
        left = (
            len(self.entries)
            - len(self.due)
            - sum(entry.state in (DONE, RUNNING, QUEUED) for entry in self.entries)
        )
        if left:
            messages.say(
                f"  left as they are: {left} that failed or were cancelled; sweep.retry=true runs them again"
            )

    def prepare(self, entry: Entry) -> None:
        """Make the run directory of a point, or take up the one there is. Raises ConfigError."""
        found = entry.planned.resolution
        config = replace(found.config, run=replace(found.config.run, dir=str(entry.point.path)))
        config.freeze()
        resolution = Resolution(
            config=config, derived=found.derived, warnings=found.warnings, world=found.world
        )
        self._made = self._made or made_now()
        kept = portable(entry.planned.combination.overrides, self.flight.config_dirs, config)
        directory.prepare(resolution, overrides=kept, made=self._made)

    def enter(self, planned: Sequence[Planned]) -> list[Entry]:
        """Planned points with their lines in the ledger, which new ones are given, in the state
        that they are in.
        """
        known = {point.hash: point for point in self.directory.points()}
        number = self.directory.next_number()
        for new in planned:
            if new.hash not in known:
                one, config = new.combination, new.resolution.config
                kept = portable(one.overrides, self.flight.config_dirs, config)
                known[new.hash] = self.directory.add(
                    hash=new.hash, overrides=kept, varied=one.varied, arm=one.arm, number=number
                )
                number += 1
        points = [known[one.hash] for one in planned]
        found = survey(points)
        if found.silent and shutil.which("squeue"):
            what = f"Slurm does not answer, which has jobs of this sweep in its queue, or had: {found.silent}"
            raise ConfigError(
                [
                    Problem(
                        key=f"sweep.name={self.directory.path.name}",
                        what=what,
                        fix="again when it does",
                    )
                ]
            )
        states = found.states
        return [
            Entry(planned=one, point=point, state=states[point.number])
            for one, point in zip(planned, points, strict=True)
        ]

    def finish(self, failed: Sequence[tuple[Point, str]], stopped: int = 0) -> int:
        """Tell how it ended, and give the exit code: 1 when any point has failed, now or before,
        128+n after a signal.
        """
        path = short(self.directory.path)
        points = {point.number: point for point in self.directory.points()}
        states = survey(list(points.values())).states
        mine = [entry.point.number for entry in self.entries]
        messages.say(f"\nsweep: {path}   ({messages.counted([states[number] for number in mine])})")
        now = {point.number: reason for point, reason in failed}
        before = [number for number in mine if states[number] == FAILED and number not in now]
        told_of = [(points[number], reason) for number, reason in now.items()]
        told_of += [
            (points[number], messages.cause(points[number].path, points[number].code))
            for number in before
        ]
        for text in messages.failures(sorted(told_of, key=lambda pair: pair[0].number)):
            messages.say(text)
        if told_of and not self.flight.sweep.retry:
            messages.say("  the same command with sweep.retry=true runs them again")
        return 128 + stopped if stopped else 1 if told_of else 0
