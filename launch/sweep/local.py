"""Points of a sweep as processes on this machine, several at a time, each with devices of its own."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from forge.config.numbers import time_span
from forge.config.problems import ConfigError
from forge.launch.local.processes import Ranks, heard
from forge.launch.sweep import messages
from forge.launch.sweep.directory import Point, SweepDirectory
from forge.launch.sweep.state import CANCELLED, STOPPED, at_work
from forge.plan.world import World
from forge.rundir import failure
from forge.rundir.directory import finished
from forge.rundir.lock import LOCK, holder

POLL = 0.05
# seconds that a point is waited for whose ranks still save after what started them was killed
BUSY = 30.0
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A point to run. prepare: makes its run directory, or takes up the one there is; raises
    ConfigError. trust: what it may build.
    """

    point: Point
    world: World
    prepare: Callable[[], object]
    trust: Sequence[str] = ()

    @property
    def gpus(self) -> int:
        """How many it takes for itself."""
        return self.world.size if self.world.device == "cuda" else 0


@dataclass(kw_only=True)
class Active:
    """A point that runs. said: why it failed, where its main rank could not say it."""

    task: Task
    ranks: Ranks
    gpus: list[str]
    began: float
    said: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class LocalPoints:
    """Runs tasks `jobs` at a time. failed: points with the reason in one line. signal: that has
    stopped all, or 0.

    at_a_time: those of the `jobs` that there are tasks for, which share the cores.
    """

    sweep: SweepDirectory
    jobs: int
    gpus: Sequence[str] = ()
    say: Callable[[str], None] = messages.say
    failed: list[tuple[Point, str]] = field(default_factory=list)
    signal: int = 0
    at_a_time: int = 1

    def run(self, tasks: Sequence[Task]) -> None:
        """Until all have ended, or a signal has stopped them: then those that run save, and none is
        started any more.
        """
        waiting, active, free = list(tasks), list[Active](), list(self.gpus)
        self.at_a_time = max(min(self.jobs, len(tasks)), 1)
        idle_since: float | None = None

        def stop(number: int, _: FrameType | None) -> None:
            if not self.signal:
                self.say(
                    f"\n{signal.Signals(number).name}: points that run are saved; once more ends them at once"
                )
            self.signal = number
            for one in active:
                one.ranks.pass_on(number)

        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, stop) for number in heard()}
        try:
            while active or (waiting and not self.signal):
                while (
                    not self.signal
                    and len(active) < self.jobs
                    and (task := _next(waiting, len(free))) is not None
                ):
                    waiting.remove(task)
                    if (begun := self._begin(task, free)) is not None:
                        active.append(begun)
                idle_since = None if active else idle_since or time.monotonic()
                if idle_since and waiting and time.monotonic() - idle_since > BUSY:
                    self._leave(waiting)
                    waiting = []
                for one in list(active):
                    if (code := one.ranks.poll()) is not None:
                        active.remove(one)
                        free += one.gpus
                        self._end(one, code)
                time.sleep(POLL)
        finally:
            for one in active:
                one.ranks.kill()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _begin(self, task: Task, free: list[str]) -> Active | None:
        point = task.point
        if self._event(point) == CANCELLED:
            self.say(messages.line(point, "cancelled"))
            return None
        try:
            task.prepare()
        except ConfigError as error:
            self.sweep.note("ended", point.number, code=2)
            self._tell_failure(point, error.problems[0].what, str(error).splitlines()[1:])
            return None
        gpus = [free.pop(0) for _ in range(task.gpus)]
        said: list[str] = []
        environ = {GPUS: ",".join(gpus)} if gpus else {}
        ranks = Ranks(
            point.path,
            task.world.size,
            output=point.path / messages.OUTPUT,
            environ=environ,
            at_a_time=self.at_a_time,
            trust=task.trust,
            say=said.append,
        )
        self.sweep.note("started", point.number, pid=ranks.pid, host=platform.node())
        self.say(messages.line(point, "starts", f"on GPU {','.join(gpus)}" if gpus else ""))
        return Active(task=task, ranks=ranks, gpus=gpus, began=time.monotonic(), said=said)

    def _end(self, one: Active, code: int) -> None:
        point = one.task.point
        self.sweep.note("ended", point.number, code=code)
        took = messages.since(one.began)
        if code == 0 or finished(point.path) is not None:
            self.say(messages.line(point, "done", messages.reached(point, took)))
        elif self._event(point) == CANCELLED:
            self.say(messages.line(point, "cancelled", messages.reached(point, took)))
        elif code in STOPPED:
            self.say(messages.line(point, "stopped", messages.reached(point, took)))
        else:
            said = [] if failure.recorded(point.path) else one.said
            reason = said[-1] if said else messages.cause(point.path, code)
            self._tell_failure(
                point,
                reason,
                said or messages.why(point.path, code),
                f"after {time_span(took)}",
            )

    def _tell_failure(
        self, point: Point, reason: str, words: Sequence[str], more: str = ""
    ) -> None:
        self.failed.append((point, reason))
        self.say(
            "\n".join([messages.line(point, "FAILED", more), *(f"     | {text}" for text in words)])
        )

    def _leave(self, points: Sequence[Task]) -> None:
        for task in points:
            self.say(
                messages.line(
                    task.point, "left", f"at work elsewhere: {holder(task.point.path / LOCK)}"
                )
            )

    def _event(self, point: Point) -> str:
        """The last thing that the ledger says of it."""
        return next((one.event for one in self.sweep.points() if one.number == point.number), "")


def visible_gpus(count: int) -> list[str]:
    """The names of this machine's GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    names = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return names[:count] if names else [str(index) for index in range(count)]


def _next(waiting: Sequence[Task], gpus: int) -> Task | None:
    """The first that nobody works on and whose GPUs are free."""
    return next((task for task in waiting if task.gpus <= gpus and not at_work(task.point)), None)
