"""The space of sweeper=optuna in Hydra's grammar: interval(a,b), tag(log, interval(a,b)),
int(interval(a,b)), range(a,b,step), a,b,c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from forge.compose.engine import Library
from forge.compose.grammar import read
from forge.config.problems import COMMAND_LINE, ConfigError, Problem
from forge.config.spelling import ours
from forge.launch.optuna.space import Choices, Numbers, Space
from forge.launch.sweep.expand import grid, key_of

LOG = "log"
OF_SWEEPER = "sweeper.params"


def without_intervals(overrides: Sequence[str]) -> list[str]:
    """The overrides that have a first value: what is the same for all trials shows in them."""
    return [
        text
        for text in overrides
        if not (isinstance(found := read(ours(text)), Override) and _is_interval(found))
    ]


def read_space(
    overrides: Sequence[str], params: Mapping[str, str], library: Callable[[], Library]
) -> Space:
    """What is searched, and what is not. params: of the sweeper, below what was typed. Raises
    ConfigError with all that is wrong.
    """
    numbers: dict[str, tuple[str, Numbers]] = {}
    problems: list[Problem] = []
    plain: list[str] = []
    typed = {key_of(ours(text)) for text in overrides}
    given = [f"{key}={value}" for key, value in params.items() if key not in typed]
    for text in (*given, *map(ours, overrides)):
        override = read(text)
        if isinstance(override, Problem):
            problems.append(override)
            continue
        key, found = override.get_key_element(), _numbers(override, text)
        numbers.pop(key, None)
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            numbers[key] = (text, found)
            plain.append(_stand_in(key, found))
        else:
            plain.append(text)
    found = grid(plain, {}, library)
    typed = {_stand_in(key, one): text for key, (text, one) in numbers.items()}
    problems += [
        replace(problem, key=typed.get(problem.key, problem.key)) for problem in found.problems
    ]
    if problems:
        raise ConfigError(
            [
                replace(problem, where=OF_SWEEPER) if problem.key in given else problem
                for problem in problems
            ]
        )
    searched: dict[str, Numbers | Choices] = {key: one for key, (_, one) in numbers.items()}
    for key, texts in found.choices.items():
        values = tuple(dict.fromkeys(text.partition("=")[2] for text in texts))
        if key not in searched and len(values) > 1:
            searched[key] = Choices(values=values)
    named = {key.lstrip("+"): key for key in found.choices if key in searched}
    fixed = tuple(texts[0] for key, texts in found.choices.items() if key not in searched)
    return Space(
        fixed=fixed, params={name: searched[key] for name, key in named.items()}, typed=named
    )


def _stand_in(key: str, found: Numbers) -> str:
    """Two values for a range of them: whatever cannot vary cannot have these either."""
    return f"{key}={found.low!r},{found.high!r}"


def _is_entry(override: Override) -> bool:
    """Whether it gives the sweeper its parameters, as a text."""
    return override.key_or_group.startswith(f"{OF_SWEEPER}.")


def _is_interval(override: Override) -> bool:
    return override.is_interval_sweep() and not _is_entry(override)


def _numbers(override: Override, text: str) -> Numbers | Problem | None:
    """The numbers that an override stands for, or what is wrong with them; None: it stands for one
    value, or for choices.
    """
    if not override.is_sweep_override() or _is_entry(override):
        return None

    def problem(what: str, fix: str) -> Problem:
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)

    key, value = override.get_key_element(), override.value()
    tags = set(getattr(value, "tags", ()))
    if unknown := sorted(tags - {LOG}):
        return problem(
            f"the tag {unknown[0]} means nothing here.",
            "tag(log, ...) searches by the logarithm; no other has a meaning",
        )
    if isinstance(value, IntervalSweep):
        return _interval(value, key, problem)
    if tags:
        return problem(
            "only an interval is searched by its logarithm.",
            f"{key}=tag(log, interval(LOW, HIGH)), or without tag(log, ...)",
        )
    return _range(value, problem) if isinstance(value, RangeSweep) else None


def _interval(
    value: IntervalSweep, key: str, problem: Callable[[str, str], Problem]
) -> Numbers | Problem:
    low, high, log = value.start, value.end, LOG in value.tags
    assert low is not None
    assert high is not None
    if not (math.isfinite(low) and math.isfinite(high)):
        return problem(
            "an end of the interval is not finite.", f"{key}=interval(LOW, HIGH) with two numbers"
        )
    if low >= high:
        return problem(
            "the interval holds no two values.", f"{key}=interval(LOW, HIGH) with LOW below HIGH"
        )
    if log and low <= 0:
        return problem(
            f"there is no logarithm of {low:g}.",
            "an interval above 0, or one without tag(log, ...)",
        )
    return Numbers(low=low, high=high, step=1 if isinstance(low, int) else None, log=log)


def _range(value: RangeSweep, problem: Callable[[str, str], Problem]) -> Numbers | Problem:
    """The numbers of a range, of which, as everywhere in Python and Hydra, the stop is none."""
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    if not all(number.is_finite() for number in (start, stop, step)):
        return problem("the range is not finite.", "range(START, STOP, STEP) with three numbers")
    count = math.ceil((stop - start) / step)
    if count <= 0:
        return problem(
            "it stands for no value at all.",
            "range(START, STOP, STEP): from START on, without STOP",
        )
    kind = (
        int
        if all(isinstance(number, int) for number in (value.start, value.stop, value.step))
        else float
    )
    low, high = sorted((start, start + (count - 1) * step))
    return Numbers(low=kind(low), high=kind(high), step=kind(abs(step)))
