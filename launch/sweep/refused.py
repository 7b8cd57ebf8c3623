"""The message about a sweep with points that cannot run: each problem once, with the points that
have it, then each such point.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations as pairs

from forge.config.problems import ConfigError, Problem
from forge.launch.sweep.expand import Combination

FEW = 5  # most values listed singly
VALUE = "\0"  # stands for a value: problems different in the value alone become equal


class PointsRefused(ConfigError):
    """A sweep with points unable to run. problems: of all points, each problem once."""

    def __init__(
        self, refused: Mapping[int, Sequence[Problem]], combinations: Sequence[Combination]
    ) -> None:
        """refused: all problems of a point, by its number."""
        self.combinations = combinations
        merged_by_problem = combine_problems(
            [problem for problems in refused.values() for problem in problems]
        )
        self._of_point = {
            n: {merged_by_problem[p] for p in problems} for n, problems in refused.items()
        }
        self._pairs = [combination.named for combination in combinations]
        super().__init__(list(dict.fromkeys(merged_by_problem.values())))

    def __str__(self) -> str:
        refused, total = len(self._of_point), len(self.combinations)
        lines = [f"{refused} of {total} points cannot run; nothing was started or written."]
        for number, problem in enumerate(self.problems, 1):
            lines += [problem.render(number), f"     {self._where(problem)}"]
        if refused == total and len(set(map(frozenset, self._of_point.values()))) == 1:
            return "\n".join(lines)  # all points have the same problems
        lines += ["", "the points that cannot run, each with the numbers of its problems:"]
        numbers = {problem: number for number, problem in enumerate(self.problems, 1)}
        for point, problems in self._of_point.items():
            numbers_of_point = ", ".join(map(str, sorted(numbers[problem] for problem in problems)))
            lines.append(f"  #{point:<4} {self.combinations[point].label}   ({numbers_of_point})")
        return "\n".join(lines)

    def _where(self, problem: Problem) -> str:
        """The points with a problem: by the values unique to these points, if any."""
        having = {number for number, problems in self._of_point.items() if problem in problems}
        count, first = len(having), self._pairs[min(having)]
        if count == len(self.combinations):
            return "in every point"
        which = f"in the {count} points with" if count > 1 else "in the point with"
        for key in first:
            values = dict.fromkeys(self._pairs[number][key] for number in sorted(having))
            if len(values) <= FEW and having == self._with({key: values}):
                return f"{which} {key}={' or '.join(values)}"
        for common in pairs(first.items(), 2):
            if having == self._with({key: [value] for key, value in common}):
                return f"{which} {' '.join(f'{key}={value}' for key, value in common)}"
        listed = " ".join(f"#{number}" for number in sorted(having))
        return f"in {count} points: {listed}" if count > 1 else f"in one point: {listed}"

    def _with(self, values: Mapping[str, Collection[str]]) -> set[int]:
        """The points with an admitted value for each key of `values`."""
        numbered = enumerate(self._pairs)
        return {
            n
            for n, pairs in numbered
            if all(pairs[key] in admitted for key, admitted in values.items())
        }


def combine_problems(problems: Sequence[Problem]) -> dict[Problem, Problem]:
    """By problem the combined problem, for all problems different in the value alone."""
    alike: dict[Problem, list[Problem]] = {}
    for problem in dict.fromkeys(problems):
        alike.setdefault(_without_value(problem), []).append(problem)
    result = {}
    for template, group in alike.items():
        values = [problem.key.partition("=")[2] for problem in group]
        text = ",".join(values if len(values) <= FEW else [*values[:FEW], "..."])
        combined = replace(
            template, key=template.key.replace(VALUE, text), fix=template.fix.replace(VALUE, text)
        )
        result |= dict.fromkeys(group, combined)
    return result


def _without_value(problem: Problem) -> Problem:
    name, _, value = problem.key.partition("=")
    if not value:
        return problem
    hint = re.sub(rf"={re.escape(value)}(?![\w.])", f"={VALUE}", problem.fix)
    return replace(problem, key=f"{name}={VALUE}", fix=hint)
