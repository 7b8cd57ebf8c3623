"""Resolve a composed config: bounds, derivations, every rule, freeze."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from forge.config.optimizers.group_faults import check_values
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.config.rule import Derived, OverriddenValue, put
from forge.planning.world import Devices, World, find_devices, world_of
from forge.resolve import causes
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.rules.all import RULES

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A frozen config ready to run, with its derived values, warnings and world. overruled: derived
    values that are not used, since the user states others.
    """

    config: Config
    derived: tuple[Derived, ...]
    overruled: tuple[OverriddenValue, ...] = ()
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
    """Work out open values, check all rules, freeze.

    world_size, devices: in place of the detected ones. known: problems of the composition, reported
    too. origin: the source of a key's value. Raises ConfigError with every problem.
    """
    broken = frozenset(problem.option for problem in known)

    local_devices = devices or find_devices()

    def check(degrees: Mapping[str, int]) -> Checked:
        return _checked(config, degrees, broken, world_size, local_devices)

    def errors_with(degrees: Mapping[str, int]) -> list[Problem]:
        return [problem for problem in check(degrees).problems if not problem.warning]

    checked = check({})
    problems = causes.merge_causes(checked.problems, config.parallel, errors_with)
    reasons = {step.key: f"worked out: {step.why}" for step in checked.derived}
    problems = [_with_source(problem, origin, reasons) for problem in problems]
    errors = [*known, *(problem for problem in problems if not problem.warning)]
    if errors:
        raise ConfigError(errors)
    assert checked.world is not None
    checked.config.freeze()
    return Resolution(
        config=checked.config,
        derived=tuple(checked.derived),
        overruled=tuple(checked.overruled),
        warnings=tuple(problems),
        world=checked.world,
    )


def _with_source(
    problem: Problem, origin: Callable[[str], str] | None, reasons: Mapping[str, str]
) -> Problem:
    """A problem with the source of its option's value, and the reason of a derived value."""
    key = problem.option
    sources = (origin(key) if origin else "", reasons.get(key, ""))
    return replace(problem, where="; ".join(filter(None, sources)))


@dataclass(kw_only=True)
class Checked:
    """A config with derived values, and its problems; no world where a value has a wrong type."""

    config: Config
    derived: list[Derived]
    problems: list[Problem]
    overruled: list[OverriddenValue] = field(default_factory=list)
    world: World | None = None


def worked_out(config: Config, *, devices: Devices | None = None) -> tuple[Config, World]:
    """A copy of the config with all values derived, and no rules checked: plans change it further.
    Raises ConfigError for values outside an option's bounds.
    """
    config = config.clone()
    config.thaw()
    if faults := check_values(config):
        raise ConfigError(faults)
    world = world_of(config, devices or find_devices())
    for derivation in DERIVATIONS:
        for step in derivation.call(config, world):
            if isinstance(step, Problem):
                raise ConfigError([step])
            if not isinstance(step, OverriddenValue):
                put(config, step.key, step.value)
    return config, world


def _checked(
    config: Config,
    degrees: Mapping[str, int],
    broken: Collection[str],
    world_size: int | None,
    devices: Devices,
) -> Checked:
    """Derive and check a copy of the config with these degrees. broken: keys with wrong values."""
    overrides, preset = config.overrides, config.preset
    config = config.clone()
    config.set_source(overrides, preset, track=False)  # derived values are not set by a user
    config.thaw()
    for key, degree in degrees.items():
        put(config, key, degree)
    checked = Checked(config=config, derived=[], problems=check_values(config))
    problems = checked.problems
    if any(problem.rule == "type" for problem in problems):
        return checked
    wrong = (key.split(".") for key in (*broken, *(problem.option for problem in problems)))
    broken = {".".join(parts[:end]) for parts in wrong for end in range(1, len(parts) + 1)}
    world = checked.world = world_of(config, devices)
    if world_size is not None:
        world = checked.world = replace(world, size=world_size, source="the caller")
    _derive(checked, world, broken)
    for rule in RULES:
        if broken.isdisjoint(rule.reads):
            steps = _as_far_as_valid(rule.check(config, world), problems, broken)
            problems += [problem for problem in steps if problem is not None]
    return checked


def _derive(checked: Checked, world: World, broken: set[str]) -> None:
    """Run every derivation with sound inputs, in place; `broken` gains the values left open."""
    for derivation in DERIVATIONS:
        if not broken.isdisjoint(derivation.reads):
            broken |= set(derivation.writes)
            continue
        steps = derivation.call(checked.config, world)
        for step in _as_far_as_valid(steps, checked.problems, broken):
            if step is None:
                broken |= set(derivation.writes)
            elif isinstance(step, Problem):
                checked.problems.append(step)
                broken |= set(derivation.writes)
            elif isinstance(step, OverriddenValue):
                checked.overruled.append(step)
            else:
                put(checked.config, step.key, step.value)
                checked.derived.append(step)


def _as_far_as_valid(
    steps: Iterable[T], problems: list[Problem], broken: Collection[str]
) -> Iterator[T | None]:
    """Yield the steps of a rule or derivation, and None for an exception after a refused value.

    A plan inside a rule reads more options than the rule declares, and can fail on a refused value.
    Without errors or broken keys, exceptions are raised.
    """
    try:
        yield from steps
    except Exception:
        if not broken and all(problem.warning for problem in problems):
            raise
        yield None
