"""Points of a sweep as processes on this machine, `launch.jobs` at a time, each with its GPUs."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

from forge.config.launch import Local
from forge.config.numbers import time_span
from forge.config.problems import ConfigError
from forge.launch.local.elastic import Elastic
from forge.launch.local.processes import signals_taken
from forge.launch.local.restarts import RestartedRanks
from forge.launch.sweep import messages
from forge.launch.sweep.command import Command, Entry
from forge.launch.sweep.directory import Point
from forge.launch.sweep.messages import line, print_line
from forge.launch.sweep.state import CANCELLED, RUNNING, STOPPED, at_work
from forge.planning.world import Devices
from forge.rundir import outcome
from forge.rundir.lock import LOCK, holder
from forge.rundir.outcome import REFUSED, finished

POLL = 0.05
PATIENCE = 30.0  # seconds to wait for points whose ranks still save after their sweep was killed
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(kw_only=True)
class Active:
    """A running point. failure: the cause, where not reported by the main rank."""

    point: Point
    ranks: RestartedRanks
    gpus: list[str]
    failure: list[str]
    began: float = field(default_factory=time.monotonic)


def run_locally(sweep: Command, devices: Devices) -> int:
    launch = sweep.flight.launch
    assert isinstance(launch, Local)
    with sweep.open():
        sweep.announce()
        # Points started by a killed command here save first, and then continue.
        saving = [
            entry for entry in sweep.entries if entry.state == RUNNING and entry.point.job is None
        ]
        points = LocalPoints(sweep, jobs=launch.jobs, gpus=visible_gpus(devices.gpus))
        points.run([*sweep.due, *saving])
        return sweep.finish(points.failed, points.signal)


class LocalPoints:
    """Run points, `jobs` at a time. failed: failed points with the reason in a line. signal: number
    of the stopping signal, or 0.
    """

    def __init__(self, sweep: Command, *, jobs: int, gpus: Sequence[str] = ()) -> None:
        self.sweep, self.jobs, self.gpus = sweep, jobs, list(gpus)
        self.failed: list[tuple[Point, str]] = []
        self.signal = 0
        self.active: list[Active] = []
        self.at_a_time = 1  # points sharing the cores

    def run(self, entries: Sequence[Entry]) -> None:
        """Run until all points have ended, or a signal stops the run: then running points save, and
        waiting points stay unstarted.
        """
        waiting = list(entries)
        self.at_a_time = max(min(self.jobs, len(waiting)), 1)
        last_active = time.monotonic()
        try:
            with signals_taken(self._stop):
                while self.active or (waiting and not self.signal):
                    while (entry := self._next(waiting)) is not None:
                        waiting.remove(entry)
                        self._begin(entry)
                    if self.active:
                        last_active = time.monotonic()
                    elif time.monotonic() - last_active > PATIENCE:
                        for entry in waiting:
                            who = holder(entry.point.path / LOCK)
                            print_line(line(entry.point, "left", f"at work elsewhere: {who}"))
                        waiting = []
                    for active in list(self.active):
                        if (code := active.ranks.poll()) is not None:
                            self.active.remove(active)
                            self.gpus += active.gpus
                            self._end(active, code)
                    time.sleep(POLL)
        finally:
            for active in self.active:
                active.ranks.kill()

    def _stop(self, number: int, _: FrameType | None) -> None:
        if not self.signal:
            name = signal.Signals(number).name
            print_line(f"\n{name}: points that run are saved; once more ends them at once")
        self.signal = number
        for active in self.active:
            active.ranks.pass_on(number)

    def _next(self, waiting: Sequence[Entry]) -> Entry | None:
        """The first point at work nowhere else, while a slot and its GPUs are free; else None."""
        if self.signal or len(self.active) >= self.jobs:
            return None
        free = len(self.gpus)
        fit = (entry for entry in waiting if _gpus(entry) <= free and not at_work(entry.point))
        return next(fit, None)

    def _begin(self, entry: Entry) -> None:
        point, config = entry.point, entry.planned.resolution.config
        if self._is_cancelled(point):
            print_line(line(point, "cancelled"))
            return
        try:
            self.sweep.prepare(entry)
        except ConfigError as error:
            self.sweep.directory.note("ended", point.number, code=REFUSED)
            self._fail(point, error.problems[0].what, str(error).splitlines()[1:])
            return
        gpus = [self.gpus.pop(0) for _ in range(_gpus(entry))]
        words: list[str] = []
        elastic = Elastic(
            run_dir=point.path,
            resolution=entry.planned.resolution,
            overrides=entry.planned.combination.overrides,
            config_dirs=self.sweep.flight.config_dirs,
        )
        ranks = RestartedRanks(
            point.path,
            entry.planned.resolution.world.size,
            config.run,
            elastic,
            gpus=gpus,
            output=point.path / messages.OUTPUT,
            environ={GPUS: ",".join(gpus)} if gpus else {},
            at_a_time=self.at_a_time,
            trust=config.run.trust,
            say=words.append,
        )
        self.sweep.directory.note("started", point.number, pid=ranks.pid, host=platform.node())
        print_line(line(point, "starts", f"on GPU {','.join(gpus)}" if gpus else ""))
        self.active.append(Active(point=point, ranks=ranks, gpus=gpus, failure=words))

    def _end(self, one: Active, code: int) -> None:
        point, took = one.point, time.monotonic() - one.began
        self.sweep.directory.note("ended", point.number, code=code)
        event = "done" if code == 0 or finished(point.path) is not None else ""
        event = event or ("cancelled" if self._is_cancelled(point) else "")
        event = event or ("stopped" if code in STOPPED else "")
        if event:
            print_line(line(point, event, messages.reached(point, took)))
            return
        words = [] if outcome.failure(point.path) else one.failure
        reason = words[-1] if words else messages.cause(point.path, code)
        output = words or messages.last_words(point.path, code)
        self._fail(point, reason, output, f"after {time_span(took)}")

    def _fail(self, point: Point, reason: str, output: Sequence[str], more: str = "") -> None:
        self.failed.append((point, reason))
        print_line(messages.failed_line(point, more, output))

    def _is_cancelled(self, point: Point) -> bool:
        points = self.sweep.directory.points()
        return any(p.event == CANCELLED for p in points if p.number == point.number)


def visible_gpus(count: int) -> list[str]:
    """The names of this machine's GPUs, in the form of CUDA_VISIBLE_DEVICES."""
    names = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return names[:count] if names else [str(index) for index in range(count)]


def _gpus(entry: Entry) -> int:
    world = entry.planned.resolution.world
    return world.size if world.device == "cuda" else 0
