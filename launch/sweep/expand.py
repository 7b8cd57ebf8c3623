"""The points that overrides with several values stand for, in Hydra's order: the last key that was
typed varies fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from hydra.errors import HydraException

from forge.compose.engine import Library
from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import Glob, Override, RangeSweep
from forge.compose.overrides import PARAMS
from forge.config import schemas
from forge.config.hydra_names import translate
from forge.config.problems import COMMAND_LINE, Problem
from forge.config.sweep import Ablation

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SHARED = ("launch", "sweep", "sweeper", "hydra")
OF_ONE_RUN = ("run.dir", "run.root", "run.name")
SAME_FOR_ALL = "it is the same for all points of a sweep."
SEEDS = "sweep.ablation.seeds"
RANGE = "range(START, STOP, STEP), or values with commas between"
ONCE = "leave one of the two out"
Fault = tuple[str, str]
"""What is wrong, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The overrides of a point. varied: the varied overrides, by key. of_arm: the overrides of its
    arm. places: file and line by key; overrides without a place were typed.
    """

    overrides: tuple[str, ...]
    varied: Mapping[str, str] = field(default_factory=dict)
    arm: str | None = None
    of_arm: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, str]:
        """All differences from other points, by key."""
        return {**self.varied, **{key_as_typed(text): _value(text) for text in self.of_arm}}

    @property
    def named(self) -> dict[str, str]:
        return {**({"arm": self.arm} if self.arm else {}), **self.varied}

    @property
    def label(self) -> str:
        """The changes as a text, else all overrides."""
        return " ".join([f"{key}={value}" for key, value in self.named.items()] or self.overrides)


@dataclass(kw_only=True)
class Grid:
    """Overrides by typed key, an override for each value. problems: of keys unable to vary.

    searched: Optuna's distribution of the values, by key; a searched key has its override as typed.
    given: (text, place) of each key.
    """

    choices: dict[str, list[str]] = field(default_factory=dict)
    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    searched: dict[str, BaseDistribution] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return prod(map(len, self.choices.values()))

    @property
    def places(self) -> dict[str, str]:
        return {key: where for key, (_, where) in self.given.items() if where != COMMAND_LINE}


def key_as_typed(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def without_intervals(overrides: Sequence[str]) -> list[str]:
    """The overrides with a first value: all but intervals."""

    def is_interval(text: str) -> bool:
        override = read_override(translate(text))
        return isinstance(override, Override) and override.is_interval_sweep() and _varies(override)

    return [text for text in overrides if not is_interval(text)]


def grid(
    overrides: Sequence[str],
    params: Mapping[str, str],
    library: Callable[[], Library],
    written_at: Callable[[str], str] = lambda key: COMMAND_LINE,
    distribution: Callable[[Override], BaseDistribution | None] | None = None,
) -> Grid:
    """The admitted values of each key.

    params: of the sweeper, replaced by a typed key. library: for a glob of a group's options.
    written_at: the place of a key. distribution: for a search by Optuna, the distribution of an
    override's values; None = choices; raises ValueError.
    """
    grid, typed = Grid(), dict[str, str]()
    keys = [(f"{key}={value}", f"{PARAMS}.{key}") for key, value in params.items()]
    entries = [(text, f"{written_at(key)}, {PARAMS}") for text, key in keys]
    entries += [(translate(text), COMMAND_LINE) for text in overrides]
    for number, (text, where) in enumerate(entries):
        grid.given[key_as_typed(text)] = text, where
        override = read_override(text)
        key, texts = text, [text]  # the composition reports unreadable overrides
        fault: Fault | None = None
        drawn_from = None
        if isinstance(override, Override):
            key = override.get_key_element()
            if override.is_sweep_override() and _varies(override):
                drawn_from, texts, fault = _choices(override, text, library, distribution)
        varies = drawn_from is not None or key in grid.searched
        if key in typed and (varies or max(len(texts), len(grid.choices[key])) > 1):
            fault = f"{key} is there twice, so that {typed[key]} would count for nothing.", ONCE
        if fault:
            grid.problems.append(Problem(text, *fault, where=where))
        grid.choices[key] = texts
        grid.searched.pop(key, None)
        if drawn_from is not None:
            grid.searched[key] = drawn_from
        if number >= len(params):
            typed[key] = text
    return grid


def _choices(
    override: Override,
    text: str,
    library: Callable[[], Library],
    distribution: Callable[[Override], BaseDistribution | None] | None,
) -> tuple[BaseDistribution | None, list[str], Fault | None]:
    """The distribution of an override with several values, else an override for each value; and a
    fault, with `text` as the only choice.
    """
    key, drawn_from, texts = override.get_key_element(), None, [text]
    try:
        drawn_from = distribution(override) if distribution else None
        fault = _why_not(override, searched=drawn_from is not None)
        if not fault and drawn_from is None:
            texts = [f"{key}={value}" for value in _values(override, library)]
            fault = None if texts else _no_value(override, library)
    except (ValueError, ArithmeticError, HydraException) as error:
        cause = str(error).partition("\n")[0].rstrip(".")
        fault = f"it cannot be read: {cause}.", f"{key}={RANGE}"
        if distribution:
            fault = f"it cannot be searched: {cause}.", "see docs/sweeps.md"
    return drawn_from, texts, fault


def expand(found: Grid, ablation: Ablation, written_at: Callable[[str], str]) -> list[Combination]:
    """Every combination; for an ablation arm by arm, the baseline first, each arm with all varied
    values and then with its seeds.
    """
    arms = sorted(ablation.arms.items(), key=lambda arm: arm[0] != ablation.baseline)
    in_files = found.places
    if ablation.seeds:
        in_files["seed"] = f"{written_at(SEEDS)}, {SEEDS}"
    seeds = [{"seed": str(seed)} for seed in ablation.seeds] or [{}]
    result = []
    for arm, arm_overrides in arms or [("", [])]:
        of_arm = {key_as_typed(text) or "''": _of_arm(arm, written_at) for text in arm_overrides}
        for texts, seed in itertools.product(itertools.product(*found.choices.values()), seeds):
            varied = {
                key.lstrip("+"): _value(text)
                for (key, choices), text in zip(found.choices.items(), texts, strict=True)
                if len(choices) > 1
            }
            last = [f"{key}={value}" for key, value in seed.items()]
            result.append(
                Combination(
                    overrides=(*texts, *arm_overrides, *last),
                    varied={**varied, **seed},
                    arm=arm or None,
                    of_arm=tuple(arm_overrides),
                    places={**in_files, **of_arm},
                )
            )
    return result


def contradictions(
    found: Grid, ablation: Ablation, written_at: Callable[[str], str]
) -> list[Problem]:
    """Problems of keys closed to arms, and of keys set both outside of an ablation and inside."""
    problems = list[Problem]()
    for arm, arm_overrides in ablation.arms.items():
        for index, text in enumerate(arm_overrides):
            key = key_as_typed(text)
            if fault := _not_in_arm(text, arm_overrides[index + 1 :]):
                problems.append(Problem(text, *fault, where=_of_arm(arm, written_at)))
            elif key in found.given:
                typed, where = found.given[key]
                message = (
                    f"the arm {arm} of the ablation sets {key}: it cannot be the same in all arms."
                )
                hint = "leave it out, or change the arm"
                problems.append(Problem(typed, message, hint, where=where))
    if ablation.seeds and "seed" in found.given:
        text, where = found.given["seed"]
        hint = f"{SEEDS}=[{_value(text)}]"
        problems.append(Problem(text, "the ablation has seeds of its own.", hint, where=where))
    return problems


def _of_arm(arm: str, written_at: Callable[[str], str]) -> str:
    return f"{written_at(f'sweep.ablation.arms.{arm}')}, the arm {arm}"


def _not_in_arm(text: str, after: Sequence[str]) -> Fault | None:
    """The fault of an override in an arm; None without one. after: later overrides of the arm."""
    key, override, value = key_as_typed(text), read_override(translate(text)), _value(text)
    if key == "seed":
        return "seeds are what the runs of an arm differ in.", f"{SEEDS}=[{value}], for all arms"
    if key in OF_ONE_RUN or _section(key) in SHARED:
        return SAME_FOR_ALL, "leave it out of the arm"
    if key in map(key_as_typed, after):
        return f"{key} is there twice in the arm, so that this would count for nothing.", ONCE
    if isinstance(override, Override) and override.is_sweep_override():
        hint = f"an arm for each, or {PARAMS}.{key}={value} for all arms; {key}=[...] for a list"
        return f"an arm has one value of {key}.", hint
    return None


def _why_not(override: Override, *, searched: bool) -> Fault | None:
    """The fault of a key's values; None without one. searched: whether Optuna draws the values."""
    key, value = override.key_or_group, override.value()
    section = _section(key)
    if section in SHARED and (section in (key, "hydra") or schemas.declared_type(key) is not None):
        return SAME_FOR_ALL, "one value; a list is written [...]"
    if key in OF_ONE_RUN:
        return "each point has a directory of its own in that of the sweep.", "leave it out"
    if searched:
        return None
    if not override.is_discrete_sweep():
        message = "an interval has no first value; only sweeper=optuna takes one."
        return message, "sweeper=optuna, or values with commas between"
    ends = [value.start, value.stop] if isinstance(value, RangeSweep) and value.step == 1 else []
    if float in map(type, ends):
        message = "it goes in steps of 1, as a third number does not say otherwise."
        return message, f"{key}={RANGE}"
    return None


def _no_value(override: Override, library: Callable[[], Library]) -> Fault:
    key = override.key_or_group
    options = library().options(key) if library().is_group(key) else []
    hint = f"options: {', '.join(options)}" if options else "at least one"
    return "it stands for no value at all.", hint


def _values(override: Override, library: Callable[[], Library]) -> list[str]:
    value, key = override.value(), override.key_or_group
    if isinstance(value, Glob):
        return value.filter(library().options(key)) if library().is_group(key) else []
    return [str(text) for text in override.sweep_string_iterator()]


def _varies(override: Override) -> bool:
    """Whether an override varies: no entry of the sweeper's parameters, with values as a text."""
    return not override.key_or_group.startswith(f"{PARAMS}.")


def _section(key: str) -> str:
    return key.replace("/", ".").partition(".")[0]


def _value(text: str) -> str:
    return text.partition("=")[2]
