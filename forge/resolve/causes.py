"""Merge problems of the layout with one cause, a degree of parallelism, into one problem: with the
largest smaller degree that solves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from forge.config.parallel import Parallel
from forge.config.problems import Problem
from forge.resolve.auto import DEGREE_RULES

CUTS = ("tp", "pp", "ep", "cp")
OF_DEGREES = {rule.id for rule in DEGREE_RULES}
OF_LAYOUT = OF_DEGREES | {"parallel.world_size", "run.gpus"}
DIVISIBLE = " must be divisible by "
LARGEST = 64  # degree to try

Check = Callable[[Mapping[str, int]], Sequence[Problem]]


def merge_causes(problems: Sequence[Problem], parallel: Parallel, check: Check) -> list[Problem]:
    """Merge the problems solved by one smaller degree into one problem; keep the others.

    parallel: as given. check: the errors left with other degrees, by key.
    """
    result, known_kinds = list(problems), set(map(_kind, problems))
    layout = [problem for problem in problems if problem.rule in OF_LAYOUT]
    if not any(problem.rule in OF_DEGREES for problem in layout):
        return result
    for axis, group in _attempts(layout, parallel):
        if not group or group[0] not in result:
            continue
        for degrees in _smaller(parallel, axis):
            leftover = set(map(_kind, check(degrees)))
            if leftover <= known_kinds and leftover.isdisjoint(map(_kind, group)):
                gone = [p for p in result if p.rule in OF_LAYOUT and _kind(p) not in leftover]
                result[result.index(group[0])] = _merged(gone, parallel, axis, degrees)
                result = [problem for problem in result if problem not in gone]
                break
    return result


def _attempts(layout: Sequence[Problem], parallel: Parallel) -> list[tuple[str, Sequence[Problem]]]:
    """Axes with the problems a smaller degree may solve: all of the layout, then the axis's own."""
    of_axis = {axis: [p for p in layout if p.option == f"parallel.{axis}"] for axis in CUTS}
    axes = [axis for axis in CUTS if getattr(parallel, axis) > 1]
    axes.sort(key=lambda axis: not of_axis[axis])
    attempts = [(axis, layout) for axis in axes if len(layout) > 1 or of_axis[axis]]
    return attempts + [(axis, of_axis[axis]) for axis in axes]


def _kind(problem: Problem) -> tuple[str, str]:
    return problem.rule, problem.option


def _smaller(parallel: Parallel, axis: str) -> Iterator[dict[str, int]]:
    """Yield smaller degrees, the largest first; where dp_shard is given, also with it open."""
    for size in range(min(getattr(parallel, axis) - 1, LARGEST), 0, -1):
        yield {f"parallel.{axis}": size}
        if parallel.dp_shard != -1:
            yield {f"parallel.{axis}": size, "parallel.dp_shard": -1}


def _merged(
    group: Sequence[Problem], parallel: Parallel, axis: str, degrees: Mapping[str, int]
) -> Problem:
    """Merge problems into one: list sizes with a common divisor first, then other sentences."""
    of_degrees = [problem for problem in group if problem.rule in OF_DEGREES]
    starts_by_end: dict[str, list[str]] = {}
    for problem in of_degrees:
        start, sign, end = problem.what.removesuffix(".").partition(DIVISIBLE)
        starts_by_end.setdefault(sign + end, []).append(start)
    parts = []
    for end, starts in starts_by_end.items():
        *most, last = starts
        listed = f"{', '.join(most)} and {last}" if most and end else "; ".join(starts)
        parts.append(listed + end)
    hint = " ".join(f"{key}={size}" for key, size in degrees.items())
    if len(group) == 1 and group[0].fix:
        hint += f" or {group[0].fix}"
    key = f"parallel.{axis}={getattr(parallel, axis)}"
    return replace(of_degrees[0], key=key, what="; ".join(parts) + ".", fix=hint)
