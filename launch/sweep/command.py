"""The points of one command in the directory of their sweep: which are done, which are due, and how
it went.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from forge.compose.portable import portable
from forge.config.problems import refusal
from forge.launch.sweep import messages
from forge.launch.sweep.directory import LOCK, POINTS, Point, SweepDirectory
from forge.launch.sweep.messages import say
from forge.launch.sweep.preflight import OTHER_PLACE, Planned, Preflight
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
from forge.resolve.resolve import Resolution
from forge.rundir import directory
from forge.rundir.directory import short
from forge.rundir.lock import InUse, Lock
from forge.rundir.provenance import Provenance, collect

WORDS = {WAITING: "to start", PARTIAL: "to go on", QUEUED: "in the queue", RUNNING: "at work"}
RETRY = "  the same command with sweep.retry=true runs them again"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A point of the command: as it was checked, as it is in the ledger, and its state before."""

    planned: Planned
    point: Point
    state: str


class Command:
    def __init__(self, flight: Preflight, planned: Sequence[Planned]) -> None:
        self.flight, self.planned = flight, planned
        self.directory = SweepDirectory(flight.place)
        self.entries: list[Entry] = []
        self._made: Provenance | None = None

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
            self.directory.begin(
                self.flight.overrides,
                config_dirs=self.flight.config_dirs,
                common=self.flight.common,
            )
            self.entries = self.enter(self.planned)
        except InUse as error:
            message, _, hint = str(error).partition(". ")
            raise refusal(f"sweep.name={path.name}", f"{message}.", hint) from None
        except OSError as error:
            message = f"the directory {path} cannot be written: {error.strerror or error}."
            raise refusal(f"sweep.root={path.parent}", message, OTHER_PLACE) from None
        with lock:
            for entry in self.due:
                if entry.state in (FAILED, CANCELLED):
                    self.directory.note("retried", entry.point.number)
            yield

    @property
    def due(self) -> list[Entry]:
        """What is to be started: what has not been, what was stopped, and, with sweep.retry, what
        failed or was cancelled.
        """
        return [entry for entry in self.entries if self._is_due(entry.state)]

    def to_start(self) -> list[Planned]:
        """The same before the directory is opened, or made."""
        points = self.directory.points()
        states = survey(points).states
        known = {point.hash: states[point.number] for point in points}
        return [one for one in self.planned if self._is_due(known.get(one.hash, WAITING))]

    def _is_due(self, state: str) -> bool:
        again = self.flight.sweep.retry and state in (FAILED, CANCELLED)
        return again or state in (WAITING, PARTIAL)

    def announce(self) -> None:
        path, states = short(self.directory.path), [entry.state for entry in self.entries]
        retry = self.flight.sweep.retry
        words = WORDS | (dict.fromkeys((FAILED, CANCELLED), "to run again") if retry else {})
        others = len(self.directory.points()) - len(states)
        more = f"; {others} other{'s' * (others != 1)} of earlier commands" if others else ""
        say(f"sweep: {path}   ({messages.counted([words.get(one, one) for one in states])}{more})")
        if any(state != DONE for state in states):
            say(f"  watch it with: python -m forge.status {path} --watch")
        left = states.count(FAILED) + states.count(CANCELLED)
        if left and not retry:
            message = "that failed or were cancelled; sweep.retry=true runs them again"
            say(f"  left as they are: {left} {message}")

    def prepare(self, entry: Entry) -> None:
        """Make the run directory of a point, or take up the one there is. Raises ConfigError."""
        found = entry.planned.resolution
        config = replace(found.config, run=replace(found.config.run, dir=str(entry.point.path)))
        config.freeze()
        resolution = Resolution(
            config=config, derived=found.derived, warnings=found.warnings, world=found.world
        )
        self._made = self._made or collect()
        kept = portable(entry.planned.combination.overrides, self.flight.config_dirs, config)
        directory.prepare(resolution, overrides=kept, made=self._made)

    def enter(self, planned: Sequence[Planned]) -> list[Entry]:
        """Planned points with their lines in the ledger, which new ones are given, and states."""
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
            message = "Slurm does not answer, which has jobs of this sweep in its queue, or had"
            name = f"sweep.name={self.directory.path.name}"
            raise refusal(name, f"{message}: {found.silent}", "again when it does")
        return [
            Entry(planned=one, point=point, state=found.states[point.number])
            for one, point in zip(planned, points, strict=True)
        ]

    def finish(self, failed: Sequence[tuple[Point, str]], stopped: int = 0) -> int:
        """Print how it ended. failed: now, with the reasons. stopped: by this signal, or 0.

        The exit code: 1 when any point of the command has failed, now or before, 128+n after a
        signal.
        """
        points = {point.number: point for point in self.directory.points()}
        states = survey(list(points.values())).states
        mine = [entry.point.number for entry in self.entries]
        counts = messages.counted([states[number] for number in mine])
        say(f"\nsweep: {short(self.directory.path)}   ({counts})")
        reasons = {point.number: reason for point, reason in failed}
        for point in (points[number] for number in mine if states[number] == FAILED):
            reasons.setdefault(point.number, messages.cause(point.path, point.code))
        for text in messages.failures((points[n], why) for n, why in sorted(reasons.items())):
            say(text)
        if reasons and not self.flight.sweep.retry:
            say(RETRY)
        return 128 + stopped if stopped else int(bool(reasons))
