"""What sweeper=optuna searches, in Hydra's grammar: interval(a,b), tag(log, interval(a,b)),
int(interval(a,b)), range(a,b,step), a,b,c.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from forge.compose.engine import Library
from forge.compose.hydra_adapter import IntervalSweep, Override, RangeSweep
from forge.config.problems import COMMAND_LINE, ConfigError
from forge.launch.sweep.expand import Combination, grid

DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Space:
    """Overrides common to all trials, and the distributions of the searched keys. typed: the keys
    as typed, with their signs. places: as of a Combination.
    """

    fixed: tuple[str, ...]
    params: Mapping[str, BaseDistribution]
    typed: Mapping[str, str]
    places: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join(
            f"{key}={space_in_words(distribution)}" for key, distribution in self.params.items()
        )

    @property
    def size(self) -> int | None:
        """The number of different trials; None for an uncountable space."""
        counts = [count(distribution) for distribution in self.params.values()]
        return None if None in counts else math.prod(number or 0 for number in counts)

    @cached_property
    def all(self) -> list[dict[str, Any]]:
        """The values of each trial of a countable space; the last key varies fastest."""
        rows = itertools.product(*map(_values, self.params.values()))
        return [dict(zip(self.params, row, strict=True)) for row in rows]

    def samples(self, most: int) -> Iterator[dict[str, Any]]:
        """All trials of a space of at most `most`, else `most` at random, the same each time."""
        if self.size is not None and self.size <= most:
            yield from self.all
            return
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for _ in range(most):
            yield study.ask(dict(self.params)).params

    def point(self, values: Mapping[str, Any]) -> Combination:
        texts = {
            key: value_as_typed(distribution, values[key])
            for key, distribution in self.params.items()
        }
        added = (f"{self.typed[key]}={value}" for key, value in texts.items())
        overrides = (*self.fixed, *added)
        return Combination(overrides=overrides, varied=texts, places=self.places)


def read_space(
    overrides: Sequence[str],
    params: Mapping[str, str],
    library: Callable[[], Library],
    written_at: Callable[[str], str] = lambda key: COMMAND_LINE,
) -> Space:
    """The space of searched and fixed overrides; arguments as in `grid`. Raises ConfigError with
    all problems.
    """
    keys = grid(overrides, params, library, written_at, distribution)
    if keys.problems:
        raise ConfigError(keys.problems)
    fixed, typed, drawn = list[str](), dict[str, str](), dict[str, BaseDistribution]()
    for key, texts in keys.choices.items():
        values = list(dict.fromkeys(text.partition("=")[2] for text in texts))
        if key not in keys.searched and len(values) == 1:
            fixed.append(texts[0])
            continue
        name = key.lstrip("+")
        typed[name] = key
        drawn[name] = keys.searched.get(key) or CategoricalDistribution(values)
    return Space(fixed=tuple(fixed), params=drawn, typed=typed, places=keys.places)


def distribution(override: Override) -> BaseDistribution | None:
    """The distribution of an override's values; None for a list of choices. Raises ValueError."""
    value = override.value()
    tags = set(getattr(value, "tags", ()))
    if not tags <= {"log"}:
        raise ValueError("of all tags only log has a meaning")
    if isinstance(value, IntervalSweep):
        low, high = value.start, value.end
        assert low is not None
        assert high is not None
        if not math.isfinite(high - low):
            raise ValueError("an end of the interval is not finite")
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=bool(tags))
        return FloatDistribution(low, high, log=bool(tags))
    if tags:
        raise ValueError("only an interval is searched by its logarithm")
    if not isinstance(value, RangeSweep):
        return None
    numbers = value.start, value.stop, value.step
    start, stop, step = (Decimal(str(number)) for number in numbers)
    if not (stop - start).is_finite() or (steps := math.ceil((stop - start) / step)) < 1:
        raise ValueError("the range has no value, or no end")
    low, high = sorted((start, start + (steps - 1) * step))
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(int(low), int(high), step=int(abs(step)))
    return FloatDistribution(float(low), float(high), step=float(abs(step)))


def count(one: BaseDistribution) -> int | None:
    """The number of values of a distribution; None for uncountable values."""
    if isinstance(one, CategoricalDistribution):
        return len(one.choices)
    assert isinstance(one, FloatDistribution | IntDistribution)
    return None if one.step is None else 1 + round((one.high - one.low) / one.step)


def value_as_typed(one: BaseDistribution, value: Any) -> str:
    if not isinstance(one, FloatDistribution):
        return str(value)
    if one.step is not None:
        return str(_step(one, round((value - one.low) / one.step)))
    short = f"{value:.{DIGITS}g}"
    return short if one.low <= float(short) <= one.high else repr(value)


def space_in_words(one: BaseDistribution) -> str:
    if isinstance(one, CategoricalDistribution):
        return f"choice({', '.join(map(str, one.choices))})"
    assert isinstance(one, FloatDistribution | IntDistribution)
    is_int = isinstance(one, IntDistribution)
    if one.step is not None and not (is_int and one.step == 1):
        return f"range({one.low:.12g}, {one.high + one.step:.12g}, {one.step:.12g})"
    inner = f"interval({one.low:.12g}, {one.high:.12g})"
    inner = f"int({inner})" if is_int else inner
    return f"tag(log, {inner})" if one.log else inner


def _values(one: BaseDistribution) -> list[Any]:
    if isinstance(one, CategoricalDistribution):
        return list(one.choices)
    if isinstance(one, IntDistribution):
        return list(range(one.low, one.high + 1, one.step))
    assert isinstance(one, FloatDistribution)
    return [_step(one, index) for index in range(count(one) or 0)]


def _step(one: FloatDistribution, place: int) -> float:
    return float(Decimal(str(one.low)) + place * Decimal(str(one.step)))
