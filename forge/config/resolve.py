"""The resolver hook: bounds, derivations in order, every rule, then freeze."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forge.config.bounds import check_bounds
from forge.config.cluster import world_of
from forge.config.derivation import Derived
from forge.config.derive import DERIVATIONS
from forge.config.errors import ConfigError, Problem
from forge.config.root import Config
from forge.config.rules import RULES
from forge.config.world import Devices, World, find_devices


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
    devices: Devices | None = None,
) -> Resolution:
    """Work out what is open, check everything, freeze.

    `world_size` replaces the count found on this machine. `known` are problems of the composition; they
    are reported together with those found here. `origin` tells where a key's value comes from. `devices` replace those of this machine.

    Raises ConfigError with every problem.
    """
    config = config.clone()
    config.__dict__.update(_overrides=config.overrides, _composed=None)  # what is worked out below was not set by anyone
    config.thaw()
    problems = list(check_bounds(config))
    broken = {problem.option for problem in [*known, *problems]}
    derived: list[Derived] = []
    if any(problem.rule == "type" for problem in problems):
        raise ConfigError([*known, *_placed(problems, origin, derived)])
    world = world_of(config, devices or find_devices())
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
    problems = _placed(problems, origin, derived)
    errors = [*known, *(p for p in problems if not p.warning)]
    if errors:
        raise ConfigError(errors)
    config.freeze()
    return Resolution(config=config, derived=tuple(derived), warnings=tuple(p for p in problems if p.warning), world=world)


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


def _placed(problems: list[Problem], origin: Callable[[str], str] | None, derived: list[Derived]) -> list[Problem]:
    """The problems, each with where its value comes from: what wrote it, and why it became what it is."""
    reasons = {step.key: f"worked out: {step.why}" for step in derived}
    placed = []
    for problem in problems:
        places = (origin(problem.option) if origin else "", reasons.get(problem.option, ""))
        placed.append(replace(problem, where="; ".join(place for place in places if place)))
    return placed
