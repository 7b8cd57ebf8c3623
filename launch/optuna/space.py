"""What sweeper=optuna searches: by key the numbers of a range, or choices, and the overrides that
all trials have.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from forge.launch.sweep.expand import Combination

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DIGITS = 6
Number = int | float


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Whole numbers, or any, from `low` to `high`, both included. step: between neighbours; None =
    there are some between any two.
    """

    low: Number
    high: Number
    step: Number | None = None
    log: bool = False

    @property
    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    @property
    def count(self) -> int | None:
        """How many there are; None where they cannot be counted."""
        return None if self.step is None else 1 + round((self.high - self.low) / self.step)

    def nth(self, place: int) -> Number:
        """One of those that can be counted."""
        return type(self.low)(Decimal(str(self.low)) + place * Decimal(str(self.step)))

    @property
    def some(self) -> list[Number]:
        """A few that stand for all: the ends, and of an interval what lies well inside, since its
        ends are hardly ever drawn.
        """
        return (
            [self.low, self.high]
            if self.count
            else [self._at(1 / math.pi), self._at(1 - 1 / math.pi)]
        )

    def drawn(self, draw: random.Random) -> Number:
        """Any of them."""
        return self.nth(draw.randrange(self.count)) if self.count else self._at(draw.random())

    def text(self, value: Number) -> str:
        """A value as it stands on a command line: six digits tell the values of an interval apart."""
        if self.step is not None:
            return str(self.nth(round((value - self.low) / self.step)))
        more = math.log10(max(abs(self.low), abs(self.high)) / (self.high - self.low))
        short = f"{value:.{min(DIGITS + max(int(more), 0), 17)}g}"
        return short if self.low <= float(short) <= self.high else repr(value)

    def __str__(self) -> str:
        """As it is typed."""
        if (
            self.step is not None
            and not self.log
            and (self.step != 1 or isinstance(self.step, float))
        ):
            return f"range({self.low:.12g}, {self.nth(self.count or 0):.12g}, {self.step:.12g})"
        inner = f"interval({self.low:.12g}, {self.high:.12g})"
        inner = inner if self.step is None else f"int({inner})"
        return f"tag(log, {inner})" if self.log else inner

    def _at(self, part: float) -> float:
        if self.log:
            return math.exp(math.log(self.low) * (1 - part) + math.log(self.high) * part)
        return self.low * (1 - part) + self.high * part


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values that have no order, as texts."""

    values: tuple[str, ...]

    @property
    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.values)

    def nth(self, place: int) -> str:
        """One of them."""
        return self.values[place]

    @property
    def some(self) -> list[str]:
        """All of them."""
        return list(self.values)

    def drawn(self, draw: random.Random) -> str:
        """Any of them."""
        return draw.choice(self.values)

    def text(self, value: str) -> str:
        """A value as it stands on a command line."""
        return value

    def __str__(self) -> str:
        """As they are typed."""
        return f"choice({', '.join(self.values)})"


def param_of(distribution: BaseDistribution) -> Numbers | Choices:
    """What a distribution of Optuna was made from."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return Choices(values=tuple(str(value) for value in distribution.choices))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return Numbers(
        low=distribution.low, high=distribution.high, step=distribution.step, log=distribution.log
    )


@dataclass(frozen=True, kw_only=True)
class Space:
    """Overrides that all trials have, and by key what differs. typed: the key as it was typed, with
    its signs.
    """

    fixed: tuple[str, ...]
    params: Mapping[str, Numbers | Choices]
    typed: Mapping[str, str]

    @property
    def size(self) -> int | None:
        """How many trials differ; None where they cannot be counted."""
        counts = [param.count for param in self.params.values()]
        return None if None in counts else math.prod(count or 0 for count in counts)

    def nth(self, place: int) -> dict[str, Any]:
        """The values of one of the trials that can be counted; the last varies fastest."""
        values: dict[str, Any] = {}
        for key, param in reversed(list(self.params.items())):
            place, own = divmod(place, param.count or 1)
            values[key] = param.nth(own)
        return {key: values[key] for key in self.params}

    def samples(self, most: int) -> Iterator[dict[str, Any]]:
        """So many trials that stand for all, the same each time; all where they are no more. The
        ends of ranges, and any, by turns.
        """
        if self.size is not None and self.size <= most:
            yield from map(self.nth, range(self.size))
            return
        draw = random.Random(0)
        ends = itertools.product(*(param.some for param in self.params.values()))
        for _ in range(most // 2):
            yield dict(zip(self.params, next(ends, ()) or self._drawn(draw).values(), strict=True))
            yield self._drawn(draw)

    def texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The values of a trial as they stand on a command line."""
        return {key: param.text(values[key]) for key, param in self.params.items()}

    def overrides(self, texts: Mapping[str, str]) -> tuple[str, ...]:
        """What a trial adds to the overrides that all have."""
        return tuple(f"{self.typed[key]}={text}" for key, text in texts.items())

    def _drawn(self, draw: random.Random) -> dict[str, Any]:
        return {key: param.drawn(draw) for key, param in self.params.items()}


def combination(space: Space, values: Mapping[str, Any]) -> Combination:
    """The point of a trial."""
    texts = space.texts(values)
    return Combination(overrides=(*space.fixed, *space.overrides(texts)), varied=texts)
