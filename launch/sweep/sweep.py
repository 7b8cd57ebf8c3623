"""A sweep from its overrides to its end: all of it is checked, then the points that are not done
are started, here or as jobs of a cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from forge.config.launch import Manifest, Submitit
from forge.config.numbers import counted, duration
from forge.config.problems import refusal
from forge.config.sweeper import Optuna
from forge.launch import jobs
from forge.launch.manifests import submit
from forge.launch.sweep import local, messages
from forge.launch.sweep.command import Command
from forge.launch.sweep.place import own_place, varied_without_seed
from forge.launch.sweep.preflight import Planned, Preflight
from forge.planning.world import Devices, find_devices, ranks_of

NEEDS = {"cmaes": ("cmaes",), "gp": ("torch", "scipy")}
"""Packages that Optuna needs for a sampler."""


def run_sweep(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> int:
    """Run the missing points of a sweep, and return the exit code. Raises ConfigError before any
    write.
    """
    devices = find_devices()
    return fly(Preflight(overrides, config_dirs, devices), devices)


def fly(flight: Preflight, here: Devices) -> int:
    """Run the missing points of a sweep with its first point composed; return the exit code."""
    if search := _search(flight):
        return search.run_search(flight, lambda sweep: execute(sweep, here))
    points = flight.points()
    if len(points) == 1 and not points[0].combination.varied:
        message = "nothing varies, so this is a sweep of one point; without -m it is a run"
        print(f"warning: {message}", file=sys.stderr)
    messages.print_warnings(point.resolution for point in points)
    world = points[0].resolution.world
    if world.planned:
        where = f"{ranks_of(world.size)} ({world.devices.source})"
        print(f"{counted(len(points), 'point')} can run on {where}; nothing was started there")
        from forge.planning.time import expected_seconds  # imported late: unused by started sweeps

        times = [expected_seconds(point.resolution.config, world) for point in points]
        if None not in times:
            longest = duration(max(filter(None, times)))
            all_of_them = duration(sum(filter(None, times)))
            print(f"the longest is expected to take {longest}, all of them {all_of_them}")
        return 0
    varied = {
        key for p in points for key in varied_without_seed(p.combination.varied, p.combination.arm)
    }
    flight.place = own_place(flight, points, varied, points[0].combination.overrides)
    return execute(Command(flight, points), here)


def point_overrides(
    overrides: Sequence[str], config_dirs: Sequence[str] = ()
) -> Iterator[tuple[str, Sequence[str]]]:
    """Label and overrides of each point of a sweep; for a search by Optuna, the overrides common to
    all trials. Raises ConfigError.
    """
    flight = Preflight(overrides, config_dirs)
    if search := _search(flight):
        space, _ = search.check_search(flight)
        yield f"every trial of the search, but for {space}", space.fixed
        return
    for number, point in enumerate(flight.points()):
        yield f"#{number:03d} {point.combination.label}", point.combination.overrides


def plan_points(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> list[Planned]:
    """All points of a sweep, or a trial of a search by Optuna, checked and not started. Raises
    ConfigError.
    """
    flight = Preflight(overrides, config_dirs)
    search = _search(flight)
    return [search.check_search(flight)[1]] if search else flight.points()


def _search(flight: Preflight) -> ModuleType | None:
    """The module for a search by Optuna; None for a sweep. Raises ConfigError without Optuna."""
    section = flight.sweeper
    if not isinstance(section, Optuna):
        return None
    if find_spec("optuna") is None:
        hint = "pip install 'forge-lm[sweep]'"
        raise refusal("sweeper=optuna", "the package optuna is not installed.", hint)
    for name in NEEDS.get(section.sampler, ()):
        if find_spec(name) is None:
            message = f"it needs the package {name}, which is not installed."
            hint = f"pip install {name}, or sweeper.sampler=tpe"
            raise refusal(f"sweeper.sampler={section.sampler}", message, hint)
    return import_module("forge.launch.optuna.search")


def execute(sweep: Command, here: Devices) -> int:
    if isinstance(sweep.flight.launch, Submitit):
        return jobs.submit_sweep(sweep)
    if isinstance(sweep.flight.launch, Manifest):
        return submit.submit_points(sweep)
    return local.run_locally(sweep, here)
