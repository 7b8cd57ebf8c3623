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
    """Run what is not done of a sweep, as python -m forge.train -m does, and give it back; the same
    call again goes on with what was stopped.

    overrides: of all points, as for forge.compose; as typed, they may have several values. over:
    the values of each key that varies; every combination is a point. Raises ConfigError with the
    problems of all points before any is started; a point that fails is among the others.
    """
    found = launcher_environment()
    if found is not None and found.size > 1:
        what = "another launcher has started the ranks, and a sweep starts those of each point."
        raise refusal("forge.sweep", what, "call it without torchrun or srun")
    varied = [_several(key, own) for key, own in (over or {}).items()]
    words = in_project([*texts(overrides), *varied])
    here = find_devices()
    flight = Preflight(words, config_dirs, here)
    if sweeping.fly(flight, here) > 128:
        print("the same call of forge.sweep goes on with what was stopped")
    return Sweep(flight.place)


def _several(key: str, values: Iterable[Any]) -> str:
    found = [value_text(key, value) for value in values]
    if isinstance(values, str | Mapping) or not found:
        raise refusal(f"over[{key!r}]", "it is no list of values.", f"{{{key!r}: [A, B]}}")
    return f"{key}={','.join(found)}"


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A run of a sweep. varied: what varies, by key, as it was typed. state: waiting, running,
    done, partial, failed, cancelled or queued. why: it failed. result: of one that has ended by
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
    """A sweep by its directory, which is read whenever something is asked."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)  # it is taken where its directory is

    def __repr__(self) -> str:
        return f"{short(self.path)} ({messages.counted([one.state for one in self.points])})"

    @property
    def points(self) -> list[SweepPoint]:
        """Every point, by number."""
        points = find_sweep(self.path).points()
        states = survey(points).states
        return [
            SweepPoint(
                number=one.number,
                varied=one.varied,
                state=states[one.number],
                run_dir=one.path,
                arm=one.arm,
                why=messages.cause(one.path, one.code) if states[one.number] == FAILED else "",
                result=outcome.read_result(one.path),
            )
            for one in points
        ]

    @property
    def best(self) -> SweepPoint | None:
        """The point that is done and has the best run.objective; None where they have none in
        common.
        """
        done = {point.number: point for point in self.points if point.state == DONE}
        points = [one for one in find_sweep(self.path).points() if one.number in done]
        found = results.best(self.path, points)
        return done[found[0].number] if found else None

    def frame(self) -> pandas.DataFrame:
        """A row a run, as of forge.report. Raises ConfigError while none is done."""
        from forge.report.frames import frame

        return frame(self.path)

    def report(self, **choices: Any) -> Framed:
        """forge.report of it. choices: metric, baseline and reach."""
        from forge.report.framed import framed

        return framed(self.path, **choices)
