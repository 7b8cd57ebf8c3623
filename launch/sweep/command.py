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
from forge.launch.sweep.messages import print_line
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
from forge.rundir.lock import DirectoryInUse, Lock
from forge.rundir.provenance import Provenance, collect
from forge.rundir.wall_clock.starts import note_submission

WORDS = {WAITING: "to start", PARTIAL: "to continue", QUEUED: "in the queue", RUNNING: "at work"}
RETRY = "  the same command with sweep.retry=true runs them again"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A point of the command: the checked point, its row of the ledger, and its state before."""

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
        """Hold the directory, made if missing, with all points of the command in its ledger. Raises
        ConfigError.
        """
        path = self.directory.path
        self.directory.agree(self.flight.plan)
        if stores := {p.resolution.config.checkpoint.remote for p in self.planned} - {None}:
            from forge.rundir.remote.brought import try_stores  # imported late: of few sweeps

            try_stores(filter(None, stores))
        advice = f"Wait for it, or end it: python -m forge.cancel {short(path)}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path, LOCK, advice=advice, apart=(POINTS,)).acquire()
            self.directory.begin(
                self.flight.overrides,
                config_dirs=self.flight.config_dirs,
                common=self.flight.common,
                plan=self.flight.plan,
            )
            self.entries = self.enter(self.planned)
        except DirectoryInUse as error:
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
        """The points to start: points never started, stopped points, and, with sweep.retry, failed
        or cancelled points.
        """
        return [entry for entry in self.entries if self._is_due(entry.state)]

    def to_start(self) -> list[Planned]:
        """The points `due`, before the directory is opened, or made."""
        points = self.directory.points()
        states = survey(points).states
        by_hash = {point.hash: states[point.number] for point in points}
        return [p for p in self.planned if self._is_due(by_hash.get(p.hash, WAITING))]

    def _is_due(self, state: str) -> bool:
        is_retried = self.flight.sweep.retry and state in (FAILED, CANCELLED)
        return is_retried or state in (WAITING, PARTIAL)

    def announce(self) -> None:
        path, states = short(self.directory.path), [entry.state for entry in self.entries]
        retry = self.flight.sweep.retry
        words = WORDS | (dict.fromkeys((FAILED, CANCELLED), "to run again") if retry else {})
        earlier = len(self.directory.points()) - len(states)
        suffix = f"; {earlier} other{'s' * (earlier != 1)} of earlier commands" if earlier else ""
        print_line(
            f"sweep: {path}   ({messages.count_states([words.get(s, s) for s in states])}{suffix})"
        )
        if any(state != DONE for state in states):
            print_line(f"  watch it with: python -m forge.status {path} --watch")
        failed = states.count(FAILED) + states.count(CANCELLED)
        if failed and not retry:
            message = "that failed or were cancelled; sweep.retry=true runs them again"
            print_line(f"  left as they are: {failed} {message}")

    def prepare(self, entry: Entry) -> None:
        """Make the run directory of a point, or take up an existing one. Raises ConfigError."""
        checked = entry.planned.resolution
        config = replace(checked.config, run=replace(checked.config.run, dir=str(entry.point.path)))
        config.freeze()
        resolution = Resolution(
            config=config, derived=checked.derived, warnings=checked.warnings, world=checked.world
        )
        self._made = self._made or collect()
        overrides = portable(entry.planned.combination.overrides, self.flight.config_dirs, config)
        run_dir, _ = directory.prepare_directory(resolution, overrides=overrides, made=self._made)
        note_submission(run_dir)

    def enter(self, planned: Sequence[Planned]) -> list[Entry]:
        """Planned points with their states and rows of the ledger; new points get a new row."""
        point_by_hash = {point.hash: point for point in self.directory.points()}
        number = self.directory.next_number()
        for new in planned:
            if new.hash not in point_by_hash:
                combination, config = new.combination, new.resolution.config
                overrides = portable(combination.overrides, self.flight.config_dirs, config)
                point_by_hash[new.hash] = self.directory.add(
                    hash=new.hash,
                    overrides=overrides,
                    varied=combination.varied,
                    arm=combination.arm,
                    number=number,
                )
                number += 1
        points = [point_by_hash[p.hash] for p in planned]
        findings = survey(points)
        if findings.silent and shutil.which("squeue"):
            message = "Slurm does not answer, which has jobs of this sweep in its queue, or had"
            name = f"sweep.name={self.directory.path.name}"
            raise refusal(name, f"{message}: {findings.silent}", "again when it does")
        return [
            Entry(planned=p, point=point, state=findings.states[point.number])
            for p, point in zip(planned, points, strict=True)
        ]

    def finish(self, failed: Sequence[tuple[Point, str]], stopped: int = 0) -> int:
        """Print the summary, and return the exit code: 1 when any point of the command has failed,
        now or before, 128+n after a signal.

        failed: points failed now, with the reasons. stopped: number of the stopping signal, or 0.
        """
        points = {point.number: point for point in self.directory.points()}
        states = survey(list(points.values())).states
        mine = [entry.point.number for entry in self.entries]
        counts = messages.count_states([states[number] for number in mine])
        print_line(f"\nsweep: {short(self.directory.path)}   ({counts})")
        reasons = {point.number: reason for point, reason in failed}
        for point in (points[number] for number in mine if states[number] == FAILED):
            reasons.setdefault(point.number, messages.cause(point.path, point.code))
        for text in messages.failures((points[n], why) for n, why in sorted(reasons.items())):
            print_line(text)
        if reasons and not self.flight.sweep.retry:
            print_line(RETRY)
        return 128 + stopped if stopped else int(bool(reasons))
