"""The resolver hook: bounds, derivations in order, every rule, then freeze."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forge.config.bounds import check_bounds
from forge.config.derive import DERIVATIONS, Derived
from forge.config.errors import ConfigError, Problem
from forge.config.root import Config
from forge.config.rules import RULES
from forge.config.world import World, find_devices, find_world


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A config that can run: frozen, with what was worked out, the warnings and the world it runs in."""

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
) -> Resolution:
    """Work out what is open, check everything, freeze.

    `world_size` replaces the count found on this machine. `known` are problems of the composition; they
    are reported together with those found here. `origin` tells where a key's value comes from.

    Raises ConfigError with every problem.
    """
    config = copy.deepcopy(config)
    problems = list(check_bounds(config))
    broken = {problem.option for problem in problems}
    world = find_world(config.run, config.parallel, find_devices())
    if world_size is not None:
        world = replace(world, size=world_size, source="the caller")
    derived: list[Derived] = []
    for derivation in DERIVATIONS:
        if not broken.isdisjoint(derivation.reads):
            broken |= set(derivation.writes)
            continue
        for step in derivation.function(config, world):
            put(config, step.key, step.value)
            derived.append(step)
    for rule in RULES:
        if broken.isdisjoint(rule.reads):
            problems += rule.check(config, world)
    if origin is not None:
        problems = [replace(p, where=p.where or origin(p.option)) for p in problems]
    errors = [*known, *(p for p in problems if not p.warning)]
    if errors:
        raise ConfigError(errors)
    config.freeze()
    return Resolution(config=config, derived=tuple(derived), warnings=tuple(p for p in problems if p.warning), world=world)


def get(config: Config, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def put(config: Config, key: str, value: Any) -> None:
    """Set the value at a dotted key of a config that is not frozen."""
    parent, _, name = key.rpartition(".")
    setattr(get(config, parent) if parent else config, name, value)
