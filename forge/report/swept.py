"""The options varied by a sweep beside the seed, and their value in each arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from forge.config.problems import closest, short_keys
from forge.report.grouping import Arm, option_value
from forge.report.runs import SEED, Run, shortest_text

ARM = "arm"
"""The key of an ablation's arms, which are a factor where other options vary too."""


@dataclass(frozen=True, kw_only=True)
class Swept:
    """An option with several values. word: the shortest distinguishing form of its key.

    values: as texts, numbers in ascending order. number: all values are numbers. log: the numbers
    are spaced by factors.
    """

    key: str
    word: str
    values: tuple[str, ...]
    number: bool
    log: bool


def swept(runs: Sequence[Run], arms: Sequence[Arm]) -> list[Swept]:
    """The swept options, in the order of typing; the arms of an ablation first."""
    keys = dict.fromkeys(key for run in runs for key in run.point.varied if key != SEED)
    if keys and any(run.point.arm for run in runs):
        keys = {ARM: None, **keys}
    arm_values = {key: {value_of_arm(arm, key) for arm in arms} - {None} for key in keys}
    several = {key: [str(value) for value in values] for key, values in arm_values.items()}
    several = {key: values for key, values in several.items() if len(values) > 1}
    words = short_keys(list(several))
    result = []
    for key, texts in several.items():
        numbers = {text: _number(text) for text in texts}
        finite = [number for number in numbers.values() if number is not None]
        is_number = len(finite) == len(texts)
        ordered = sorted(texts, key=lambda text, as_number=numbers: (as_number[text] or 0.0, text))
        option = Swept(
            key=key,
            word=words[key],
            values=tuple(ordered),
            number=is_number,
            log=is_number and is_by_factors(sorted(finite)),
        )
        result.append(option)
    return result


def value_of_arm(arm: Arm, key: str) -> str | None:
    if key == ARM:
        return next((run.point.arm for run in arm.runs if run.point.arm), None)
    return next((value for run in arm.runs if (value := option_value(run, key)) is not None), None)


def level(text: str, options: Sequence[Swept]) -> tuple[Swept, str] | None:
    """The option and the value that a text like model.qk_norm=false or lr=1e-3 names, if any."""
    key, sign, value = text.partition("=")
    named = [option for option in options if f".{option.key}".endswith(f".{key}")]
    if not sign or len(named) != 1 or shortest_text(value) not in named[0].values:
        return None
    return named[0], shortest_text(value)


def levels(options: Sequence[Swept], text: str = "") -> list[str]:
    """The levels of all options as texts, or those that a mistyped text may mean."""
    every = [f"{option.word}={value}" for option in options for value in option.values]
    return closest(text, every) if text else every


def is_by_factors(values: Sequence[float]) -> bool:
    """Whether the steps between numbers are more alike as factors than as differences.

    Two numbers count as spaced by factors when the second is at least five times the first.
    """
    if values[0] <= 0:
        return False
    if len(values) == 2:
        return values[1] >= 5 * values[0]
    return _unevenness([math.log(value) for value in values]) < _unevenness(values)


def _unevenness(values: Sequence[float]) -> float:
    """Deviation of the steps, as a share of their mean."""
    steps = [b - a for a, b in pairwise(values)]
    mean = sum(steps) / len(steps)
    return (sum((step - mean) ** 2 for step in steps) / len(steps)) ** 0.5 / mean


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
