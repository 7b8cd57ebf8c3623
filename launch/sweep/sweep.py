"""A sweep from its overrides to its end: checked whole, then what is not done yet is started, here
or as jobs of a cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from forge.config.launch import Local, Slurm, SubmititLocal
from forge.config.sweeper import Optuna
from forge.launch.optuna.grammar import without_intervals
from forge.launch.sweep.command import Command, Entry
from forge.launch.sweep.local import LocalPoints, Task, visible_gpus
from forge.launch.sweep.points import Preflight
from forge.launch.sweep.state import RUNNING
from forge.plan.world import Devices, find_devices


def run(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> int:
    """Run what is not done of a sweep, and return the exit code. Raises ConfigError before anything
    is started or written.
    """
    here = find_devices()
    plain = without_intervals(overrides)
    flight = Preflight(plain, config_dirs, here)
    if isinstance(flight.sweeper, Optuna):
        from forge.launch.optuna import sweeper as optuna_sweeper

        return optuna_sweeper.run(overrides, flight, lambda sweep: execute(sweep, here))
    if len(plain) < len(overrides):
        flight = Preflight(overrides, config_dirs, here)  # which refuses them
    planned = flight.points()
    if len(planned) == 1 and not planned[0].combination.varied:
        print(
            "warning: nothing varies, so this is a sweep of one point; without -m it is a run",
            file=sys.stderr,
        )
    for text in dict.fromkeys(
        f"{w.what} ({w.key}; -> {w.fix})" for one in planned for w in one.resolution.warnings
    ):
        print(f"warning: {text}", file=sys.stderr)
    return execute(Command(flight, planned), here)


def configs(
    overrides: Sequence[str], config_dirs: Sequence[str] = ()
) -> Iterator[tuple[str, Sequence[str]]]:
    """The points of a sweep, each as its label and its overrides; a search has one, what its trials
    have in common. Raises ConfigError.
    """
    plain = without_intervals(overrides)
    flight = Preflight(plain, config_dirs)
    if isinstance(flight.sweeper, Optuna):
        from forge.launch.optuna import sweeper as optuna_sweeper

        space, _ = optuna_sweeper.searched(overrides, flight)
        labels = " ".join(f"{key}={param}" for key, param in space.params.items())
        yield f"every trial of the search, but for {labels}", space.fixed
        return
    if len(plain) < len(overrides):
        flight = Preflight(overrides, config_dirs)  # which refuses them
    for number, point in enumerate(flight.points()):
        yield f"#{number:03d} {point.combination.label}", point.combination.overrides


def execute(sweep: Command, here: Devices) -> int:
    """Run what is due of a command by the launcher that it names, and return the exit code."""
    launch = sweep.flight.launch
    if isinstance(launch, Slurm | SubmititLocal):
        from forge.launch.sweep import jobs as sweep_jobs

        return sweep_jobs.run(sweep)
    assert isinstance(launch, Local)
    return _here(sweep, launch.jobs, here)


def _here(sweep: Command, jobs: int, devices: Devices) -> int:
    with sweep.open():
        sweep.announce()
        local = LocalPoints(sweep=sweep.directory, jobs=jobs, gpus=visible_gpus(devices.gpus))
        local.run(
            [
                _task(sweep, entry)
                for entry in (*sweep.due, *(entry for entry in sweep.entries if _is_local(entry)))
            ]
        )
        return sweep.finish(local.failed, local.signal)


def _is_local(entry: Entry) -> bool:
    """Whether a point that is at work was started here, by a command that is no more: its ranks
    save, and then it goes on.
    """
    return entry.state == RUNNING and entry.point.job is None


def _task(sweep: Command, entry: Entry) -> Task:
    found = entry.planned.resolution
    return Task(
        point=entry.point,
        world=found.world,
        prepare=lambda: sweep.prepare(entry),
        trust=found.config.run.trust,
    )
