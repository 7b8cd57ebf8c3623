"""What is said of a sweep with points that cannot run: each problem once, with the points that have it, and each such point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from forge.config.errors import ConfigError, Problem
from forge.launch.expand import Combination


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A point that cannot run, and all that is wrong with it."""

    number: int
    combination: Combination
    problems: tuple[Problem, ...]


class PointsRefused(ConfigError):
    """A sweep of which some points cannot run: `problems` are those of all of them, each once."""

    def __init__(self, wrong: Sequence[Wrong], combinations: Sequence[Combination]) -> None:
        self.wrong, self.combinations = tuple(wrong), tuple(combinations)
        super().__init__(list(dict.fromkeys(problem for point in wrong for problem in point.problems)))

    def __str__(self) -> str:
        lines = [f"{len(self.wrong)} of {len(self.combinations)} points cannot run; nothing was started or written."]
        for number, problem in enumerate(self.problems, 1):
            lines += [problem.render(number), f"     {self._where(problem)}"]
        if len(self.wrong) == len(self.combinations) and len({frozenset(point.problems) for point in self.wrong}) == 1:
            return "\n".join(lines)  # what is wrong with one is wrong with all
        lines += ["", "the points that cannot run, each with the numbers of its problems:"]
        for point in self.wrong:
            numbers = ", ".join(map(str, sorted(1 + self.problems.index(problem) for problem in set(point.problems))))
            lines.append(f"  #{point.number:<4} {point.combination.label}   ({numbers})")
        return "\n".join(lines)

    def _where(self, problem: Problem) -> str:
        """The points that have a problem: by what they, and no others, have in common, where there is such a thing."""
        having = {point.number for point in self.wrong if problem in point.problems}
        if len(having) == len(self.combinations):
            return "in every point"
        pairs = _pairs(self.combinations[min(having)])
        for common in (set(few) for count in (1, 2) for few in combinations(pairs, count)):
            if having == {number for number, one in enumerate(self.combinations) if common <= set(_pairs(one))}:
                named = " ".join(f"{key}={value}" for key, value in pairs if (key, value) in common)
                return f"in the {len(having)} points with {named}" if len(having) > 1 else f"in the point with {named}"
        listed = " ".join(f"#{number}" for number in sorted(having))
        return f"in {len(having)} points: {listed}" if len(having) > 1 else f"in one point: {listed}"


def _pairs(combination: Combination) -> list[tuple[str, str]]:
    arm = [("arm", combination.arm)] if combination.arm else []
    return [*arm, *combination.varied.items()]
