"""A sweep from Python: from what varies to how its points ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.compose.options import Options, texts, value_text
from forge.compose.trust import in_project
from forge.config.problems import refusal
from forge.launch.sweep import messages, results
from forge.launch.sweep import sweep as sweeping
from forge.launch.sweep.directory import find_sweep
from forge.launch.sweep.preflight import Preflight
from forge.launch.sweep.state import DONE, FAILED, survey
from forge.planning.launcher_environment import launcher_environment
from forge.planning.world import find_devices
from forge.rundir import outcome
from forge.rundir.directory import short
from forge.rundir.outcome import Result

if TYPE_CHECKING:
    import pandas

    from forge.report.framed import Framed


def sweep(
    overrides: Options = (),
    over: Mapping[str, Iterable[Any]] | None = None,
    *,
    config_dirs: Sequence[str] = (),
) -> Sweep:
    """Run the missing points of a sweep, as python -m forge.train -m, and return the sweep; the
    same call again continues with stopped points.

    overrides: of all points, as for forge.compose; typed overrides may have several values. over:
    the values of each varied key; every combination is a point. Raises ConfigError with the
    problems of all points before the first start; a failed point is among the returned points.
    """
    environment = launcher_environment()
    if environment is not None and environment.size > 1:
        message = "another launcher has started the ranks, and a sweep starts those of each point."
        raise refusal("forge.sweep", message, "call it without torchrun or srun")
    varied = [_several(key, values) for key, values in (over or {}).items()]
    words = in_project([*texts(overrides), *varied])
    devices = find_devices()
    flight = Preflight(words, config_dirs, devices)
    if sweeping.fly(flight, devices) > 128:
        print("the same call of forge.sweep continues with what was stopped")
    return Sweep(flight.place)


def _several(key: str, values: Iterable[Any]) -> str:
    texts = [value_text(key, value) for value in values]
    if isinstance(values, str | Mapping) or not texts:
        raise refusal(f"over[{key!r}]", "it is no list of values.", f"{{{key!r}: [A, B]}}")
    return f"{key}={','.join(texts)}"


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A run of a sweep. varied: the varied values by key, as typed. state: waiting, running, done,
    partial, failed, cancelled or queued. why: the cause of a failure. result: of a point ended by
    itself.
    """

    number: int
    varied: dict[str, str]
    state: str
    run_dir: Path
    arm: str | None = None
    why: str = field(default="", repr=False)
    result: Result | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Sweep:
    """A sweep by its directory; every property reads the directory again."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)  # a sweep is accepted wherever its directory is

    def __repr__(self) -> str:
        return (
            f"{short(self.path)} ({messages.count_states([point.state for point in self.points])})"
        )

    @property
    def points(self) -> list[SweepPoint]:
        """Every point, by number."""
        points = find_sweep(self.path).points()
        states = survey(points).states
        return [
            SweepPoint(
                number=p.number,
                varied=p.varied,
                state=states[p.number],
                run_dir=p.path,
                arm=p.arm,
                why=messages.cause(p.path, p.code) if states[p.number] == FAILED else "",
                result=outcome.read_result(p.path),
            )
            for p in points
        ]

    @property
    def best(self) -> SweepPoint | None:
        """The finished point with the best run.objective; None without a common objective."""
        done = {point.number: point for point in self.points if point.state == DONE}
        points = [entry for entry in find_sweep(self.path).points() if entry.number in done]
        best = results.best_finished(self.path, points)
        return done[best[0].number] if best else None

    def frame(self) -> pandas.DataFrame:
        """A row a run, as of forge.report. Raises ConfigError before the first run is done."""
        from forge.report.frames import frame

        return frame(self.path)

    def report(self, **choices: Any) -> Framed:
        """forge.report of the sweep. choices: metric, baseline and reach."""
        from forge.report.framed import framed

        return framed(self.path, **choices)
