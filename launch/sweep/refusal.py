"""What is said of a sweep with points that cannot run: each problem once, with the points that have
it, and each such point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from forge.config.problems import ConfigError, Problem
from forge.launch.sweep.expand import Combination

FEW = 5  # values that are named one by one
VALUE = "\0"  # in the place of a value, so that problems with several are alike


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A point that cannot run, and all that is wrong with it."""

    number: int
    combination: Combination
    problems: tuple[Problem, ...]


class PointsRefused(ConfigError):
    """A sweep of which some points cannot run: `problems` are those of all of them, each once,
    whatever values have it.
    """

    def __init__(self, wrong: Sequence[Wrong], combinations: Sequence[Combination]) -> None:
        self.wrong, self.combinations = tuple(wrong), tuple(combinations)
        found = merged([problem for point in wrong for problem in point.problems])
        self._pairs = [_pairs(one) for one in combinations]
        self._of_point = {
            point.number: {found[problem] for problem in point.problems} for point in wrong
        }
        super().__init__(list(dict.fromkeys(found.values())))

    def __str__(self) -> str:
        lines = [
            f"{len(self.wrong)} of {len(self.combinations)} points cannot run; nothing was started or written."
        ]
        for number, problem in enumerate(self.problems, 1):
            lines += [problem.render(number), f"     {self._where(problem)}"]
        if (
            len(self.wrong) == len(self.combinations)
            and len(set(map(frozenset, self._of_point.values()))) == 1
        ):
            return "\n".join(lines)  # what is wrong with one is wrong with all
        lines += ["", "the points that cannot run, each with the numbers of its problems:"]
        for point in self.wrong:
            numbers = ", ".join(
                map(
                    str,
                    sorted(
                        1 + self.problems.index(problem) for problem in self._of_point[point.number]
                    ),
                )
            )
            lines.append(f"  #{point.number:<4} {point.combination.label}   ({numbers})")
        return "\n".join(lines)

    def _where(self, problem: Problem) -> str:
        """The points that have a problem: by what they, and no others, have in common, where there
        is such a thing.
        """
        having = {number for number, problems in self._of_point.items() if problem in problems}
        if len(having) == len(self.combinations):
            return "in every point"
        of_first = self._pairs[min(having)]
        for common in (few for count in (1, 2) for few in combinations(of_first.items(), count)):
            if having == self._with({key: {value} for key, value in common}):
                return _points(having, " ".join(f"{key}={value}" for key, value in common))
        for key in of_first:
            values = list(dict.fromkeys(self._pairs[number][key] for number in sorted(having)))
            if len(values) <= FEW and having == self._with({key: set(values)}):
                return _points(having, f"{key}={', '.join(values[:-1])} or {values[-1]}")
        listed = " ".join(f"#{number}" for number in sorted(having))
        return (
            f"in {len(having)} points: {listed}" if len(having) > 1 else f"in one point: {listed}"
        )

    def _with(self, values: Mapping[str, set[str]]) -> set[int]:
        """The points in which each of some keys has one of its values."""
        return {
            number
            for number, pairs in enumerate(self._pairs)
            if all(pairs[key] in some for key, some in values.items())
        }


def merged(problems: Sequence[Problem]) -> dict[Problem, Problem]:
    """For each problem the one that is said of it and of all that differ from it in the value
    alone.
    """
    alike: dict[Problem, list[str]] = {}
    for problem in dict.fromkeys(problems):
        alike.setdefault(_without_value(problem), []).append(problem.key.partition("=")[2])
    return {
        problem: _with_values(_without_value(problem), alike[_without_value(problem)])
        for problem in problems
    }


def _without_value(problem: Problem) -> Problem:
    name, _, value = problem.key.partition("=")
    same = (
        re.sub(rf"={re.escape(value)}(?![\w.])", f"={VALUE}", problem.fix) if value else problem.fix
    )
    return replace(problem, key=f"{name}={VALUE}" if value else problem.key, fix=same)


def _with_values(problem: Problem, values: Sequence[str]) -> Problem:
    text = ",".join(values if len(values) <= FEW else [*values[:FEW], "..."])
    return replace(
        problem, key=problem.key.replace(VALUE, text), fix=problem.fix.replace(VALUE, text)
    )


def _points(having: set[int], what: str) -> str:
    return (
        f"in the {len(having)} points with {what}"
        if len(having) > 1
        else f"in the point with {what}"
    )


def _pairs(combination: Combination) -> dict[str, str]:
    return {**({"arm": combination.arm} if combination.arm else {}), **combination.varied}
