"""The resolver hook: bounds, derivations in order, every rule, then freeze."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from forge.config.bounds import check_bounds
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.plan.cluster import world_of
from forge.plan.world import Devices, World, find_devices
from forge.resolve.causes import of_one_cause
from forge.resolve.derivation import Derived
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.rules.all import RULES


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A config that can run: frozen, with what was worked out, the warnings and the world it runs
    in.
    """

    config: Config
    derived: tuple[Derived, ...]
    warnings: tuple[Problem, ...]
    world: World


def resolve(
    config: Config,
    *,
    world_size: int | None = None,
    known: tuple[Problem, ...] = (),
    origin: Callable[[str], str] | None = None,
    devices: Devices | None = None,
) -> Resolution:
    """Work out what is open, check everything, freeze.

    `world_size` replaces the count found on this machine. `known` are problems of the composition;
    they are reported together with those found here. `origin` tells where a key's value comes from.
    `devices` replace those of this machine.

    Raises ConfigError with every problem.
    """
    broken = frozenset(problem.option for problem in known)

    def check(degrees: Mapping[str, int] = MappingProxyType({})) -> Checked:
        """The config, with other degrees of parallelism by key where they are given."""
        return _checked(config, degrees, broken, world_size, devices or find_devices())

    found = check()
    problems = of_one_cause(
        found.problems,
        config.parallel,
        lambda degrees: [p for p in check(degrees).problems if not p.warning],
    )
    problems = _placed(problems, origin, found.derived)
    errors = [*known, *(p for p in problems if not p.warning)]
    if errors:
        raise ConfigError(errors)
    found.config.freeze()
    assert found.world is not None
    warnings = tuple(p for p in problems if p.warning)
    return Resolution(
        config=found.config, derived=tuple(found.derived), warnings=warnings, world=found.world
    )


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A config with what is open in it worked out, and its problems; no world where a value has
    another type than its option.
    """

    config: Config
    derived: list[Derived]
    problems: list[Problem]
    world: World | None


def _checked(
    config: Config,
    degrees: Mapping[str, int],
    broken: Collection[str],
    world_size: int | None,
    devices: Devices,
) -> Checked:
    """A copy of the config with these degrees, worked out and checked. broken: keys whose values
    are known to be wrong.
    """
    overrides = config.overrides
    config = config.clone()
    config.__dict__.update(
        _overrides=overrides, _composed=None
    )  # what is worked out below was not set by anyone
    config.thaw()
    for key, degree in degrees.items():
        put(config, key, degree)
    problems = list(check_bounds(config))
    derived: list[Derived] = []
    if any(problem.rule == "type" for problem in problems):
        return Checked(config=config, derived=derived, problems=problems, world=None)
    broken = {*broken, *(problem.option for problem in problems)}
    world = world_of(config, devices)
    if world_size is not None:
        world = replace(world, size=world_size, source="the caller")
    for derivation in DERIVATIONS:
        if not broken.isdisjoint(derivation.reads):
            broken |= set(derivation.writes)
            continue
        for step in derivation.function(config, world):
            if isinstance(step, Problem):
                problems.append(step)
                broken |= set(derivation.writes)
                continue
            put(config, step.key, step.value)
            derived.append(step)
    for rule in RULES:
        if broken.isdisjoint(rule.reads):
            problems += rule.check(config, world)
    return Checked(config=config, derived=derived, problems=problems, world=world)


def get(config: Config, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def put(config: Config, key: str, value: Any) -> None:
    """Set the value at a dotted key of a config that is not frozen."""
    parent, _, name = key.rpartition(".")
    setattr(get(config, parent) if parent else config, name, value)


def _placed(
    problems: list[Problem], origin: Callable[[str], str] | None, derived: list[Derived]
) -> list[Problem]:
    """The problems, each with where its value comes from: what wrote it, and why it became what it
    is.
    """
    reasons = {step.key: f"worked out: {step.why}" for step in derived}
    placed = []
    for problem in problems:
        places = (origin(problem.option) if origin else "", reasons.get(problem.option, ""))
        placed.append(replace(problem, where="; ".join(place for place in places if place)))
    return placed
