"""The points that overrides with several values stand for, in Hydra's order: the last key that was
typed varies fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import get_origin

from hydra.core.override_parser.types import Glob, Override, RangeSweep

from forge.compose.engine import Library
from forge.compose.expected import ARMS
from forge.compose.grammar import read
from forge.compose.several import PARAMS
from forge.config import schemas
from forge.config.problems import COMMAND_LINE, Problem
from forge.config.spelling import ours
from forge.config.sweep import Ablation

OF_ALL = ("launch", "sweep", "sweeper", "hydra")
OF_POINTS = ("run.dir", "run.root", "run.name")
SAME_FOR_ALL = "it is the same for all points of a sweep."
AS_RANGE = "{key}=range(START, STOP[, STEP]), with STOP beyond START"


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The overrides of one point, and of them what varies, by key, and what its arm of an ablation
    is made of.
    """

    overrides: tuple[str, ...]
    varied: Mapping[str, str] = field(default_factory=dict)
    arm: str | None = None
    of_arm: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, str]:
        """All that tells it from its neighbours, by key."""
        return {**self.varied, **{key_of(text): text.partition("=")[2] for text in self.of_arm}}

    @property
    def label(self) -> str:
        """What tells it from its neighbours, in a few words."""
        words = [f"arm={self.arm}"] if self.arm else []
        return " ".join(
            [*words, *(f"{key}={value}" for key, value in self.varied.items())] or self.overrides
        )


@dataclass(kw_only=True)
class Grid:
    """Choices by key as it was typed: one where it is the same in all points. problems: of what
    cannot vary.
    """

    choices: dict[str, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return prod(map(len, self.choices.values()))

    @property
    def first(self) -> list[str]:
        """The overrides of the first combination."""
        return [texts[0] for texts in self.choices.values() if texts]


def typed_at(key: str) -> str:
    """Where all is that was typed."""
    return COMMAND_LINE


def of_params(key: str, written_at: Callable[[str], str]) -> str:
    """The place of a key among the sweeper's parameters."""
    return f"{written_at(f'{PARAMS}.{key}')}, {PARAMS}"


def of_arm(arm: str, written_at: Callable[[str], str]) -> str:
    """The place of an arm."""
    return f"{written_at(f'{ARMS}.{arm}')}, the arm {arm}"


def grid(
    overrides: Sequence[str],
    params: Mapping[str, str],
    library: Callable[[], Library],
    written_at: Callable[[str], str] = typed_at,
) -> Grid:
    """What each key may be.

    params: of the sweeper, below what was typed. library: for a glob of a group's options.
    written_at: tells where a parameter is.
    """
    found, typed = Grid(), dict[str, str]()
    below = [(f"{key}={value}", of_params(key, written_at)) for key, value in params.items()]
    for number, (text, where) in enumerate(
        [*below, *((ours(text), COMMAND_LINE) for text in overrides)]
    ):
        override = read(text)
        key = override.get_key_element() if isinstance(override, Override) else text
        problem, texts = None, [text]  # what composing refuses keeps a place of its own
        if (
            isinstance(override, Override)
            and override.is_sweep_override()
            and not _is_entry(override)
        ):
            fault = _unfit(override)
            texts = [] if fault else [f"{key}={value}" for value in _values(override, library)]
            fault = fault or (None if texts else _empty(override, library))
            problem = Problem(key=text, what=fault[0], fix=fault[1], where=where) if fault else None
        if key in typed and max(len(texts), len(found.choices[key])) > 1:
            what = f"{key} is there twice, so that {typed[key]} would count for nothing."
            problem = Problem(key=text, what=what, fix="leave one of the two out", where=where)
        found.problems += [problem] if problem else []
        found.choices[key] = texts
        if number >= len(below):
            typed[key] = text
    return found


def expand(found: Grid, ablation: Ablation | None = None) -> list[Combination]:
    """Every combination; of an ablation, arm by arm, the baseline first, each with all others and
    then with its seeds.
    """
    arms = (
        dict(sorted(ablation.arms.items(), key=lambda arm: arm[0] != ablation.baseline))
        if ablation
        else {}
    )
    seeds = [f"seed={seed}" for seed in ablation.seeds] if ablation else []
    result = []
    for arm, own in (arms or {"": []}).items():
        for texts in itertools.product(*found.choices.values()):
            varied = {
                key.lstrip("+"): text.partition("=")[2]
                for (key, choices), text in zip(found.choices.items(), texts, strict=True)
                if len(choices) > 1
            }
            for seed in seeds or [""]:
                with_seed = {**varied, "seed": seed.partition("=")[2]} if seed else varied
                texts_of_all = (*texts, *own, *([seed] if seed else []))
                result.append(
                    Combination(
                        overrides=texts_of_all, varied=with_seed, arm=arm or None, of_arm=tuple(own)
                    )
                )
    return result


def contradictions(
    overrides: Sequence[str],
    params: Mapping[str, str],
    ablation: Ablation,
    written_at: Callable[[str], str] = typed_at,
) -> list[Problem]:
    """What is typed, or varies, and an arm or the seeds of an ablation set as well; and what no arm
    can set.
    """
    typed = {
        key_of(f"{key}="): (f"{key}={value}", of_params(key, written_at))
        for key, value in params.items()
    }
    typed |= {key_of(text): (text, COMMAND_LINE) for text in map(ours, overrides)}
    problems = []
    for arm, own in ablation.arms.items():
        where = of_arm(arm, written_at)
        for place, text in enumerate(own):
            key = key_of(text)
            if fault := _unfit_for_arm(text, own[place + 1 :]):
                problems.append(Problem(key=text, what=fault[0], fix=fault[1], where=where))
            elif key in typed:
                what = f"the arm {arm} of the ablation sets {key}, so it cannot be the same in all arms."
                problems.append(
                    Problem(
                        key=typed[key][0],
                        what=what,
                        fix="leave it out, or change the arm",
                        where=typed[key][1],
                    )
                )
    if ablation.seeds and "seed" in typed:
        text, where = typed["seed"]
        fix = f"sweep.ablation.seeds=[{text.partition('=')[2]}]"
        problems.append(
            Problem(key=text, what="the ablation has seeds of its own.", fix=fix, where=where)
        )
    return problems


def _unfit_for_arm(text: str, after: Sequence[str]) -> tuple[str, str] | None:
    """Why an override of an arm counts for nothing, or for too much, and what to do. after: those
    that follow it in the arm.
    """
    key, override = key_of(text), read(ours(text))
    if key == "seed":
        return (
            "seeds are what the runs of an arm differ in.",
            f"sweep.ablation.seeds=[{text.partition('=')[2]}], for all arms",
        )
    if key in OF_POINTS or key.replace("/", ".").partition(".")[0] in OF_ALL:
        return SAME_FOR_ALL, "leave it out of the arm"
    if key in map(key_of, after):
        return (
            f"{key} is there twice in the arm, so that this would count for nothing.",
            "leave one of the two out",
        )
    if isinstance(override, Override) and override.is_sweep_override():
        value = text.partition("=")[2]
        several = f"an arm for each of them, or {PARAMS}.{key}={value} for all arms"
        return (
            f"an arm has one value of {key}.",
            f"{several}; {key}=[{value}] for a list" if _is_list(key) else several,
        )
    return None


def key_of(text: str) -> str:
    """The key of an override, without its signs."""
    return text.lstrip("+~").partition("=")[0]


def _is_entry(override: Override) -> bool:
    """Whether it gives a sweeper its parameters, for which several values are a text."""
    return override.key_or_group.startswith("sweeper.params.")


def _unfit(override: Override) -> tuple[str, str] | None:
    """Why a key cannot vary so, and what to do."""
    key = override.key_or_group
    section = key.replace("/", ".").partition(".")[0]
    if section in OF_ALL and (section in (key, "hydra") or schemas.declared(key) is not None):
        return SAME_FOR_ALL, f"{key}=[...] for a list" if _is_list(key) else "one value"
    if key in OF_POINTS:
        return "each point has a directory of its own in that of the sweep.", "leave it out"
    if not override.is_discrete_sweep():
        return (
            "an interval has no first value; only sweeper=optuna takes one.",
            "sweeper=optuna, or values with commas between",
        )
    value = override.value()
    if (
        isinstance(value, RangeSweep)
        and value.step == 1
        and not (isinstance(value.start, int) and isinstance(value.stop, int))
    ):
        what = "it goes in steps of 1, as a third number does not say otherwise."
        return what, f"{key}=range(START, STOP, STEP), or values with commas between"
    return None


def _empty(override: Override, library: Callable[[], Library]) -> tuple[str, str]:
    """Why several values are none, and what to do."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, RangeSweep):
        return (
            f"no number is in it: it goes from {value.start} to below {value.stop} in steps of {value.step}.",
            AS_RANGE.format(key=key),
        )
    if isinstance(value, Glob) and library().is_group(key):
        return f"no {key} has such a name.", f"options: {', '.join(library().options(key))}"
    if isinstance(value, Glob):
        return f"glob chooses among the options of a group, and {key} is none.", f"{key}=A,B"
    return "it stands for no value at all.", "at least one"


def _is_list(key: str) -> bool:
    return get_origin(schemas.declared(key)) in (list, tuple)


def _values(override: Override, library: Callable[[], Library]) -> list[str]:
    value = override.value()
    if isinstance(value, Glob):
        return (
            value.filter(library().options(override.key_or_group))
            if library().is_group(override.key_or_group)
            else []
        )
    return [str(text) for text in override.sweep_string_iterator()]
