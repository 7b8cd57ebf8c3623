"""Problems of the layout that have one cause, a degree of parallelism, become one problem: with the
largest smaller degree that none of them is left with.
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
LARGEST = 64  # that is tried

Check = Callable[[Mapping[str, int]], Sequence[Problem]]


def merge(problems: Sequence[Problem], parallel: Parallel, check: Check) -> list[Problem]:
    """The problems, of which those that one smaller degree solves are one.

    parallel: as it was given. check: the errors that are left with other degrees, by key.
    """
    result, known = list(problems), set(map(_kind, problems))
    layout = [problem for problem in problems if problem.rule in OF_LAYOUT]
    if not any(problem.rule in OF_DEGREES for problem in layout):
        return result
    own = {axis: [p for p in layout if p.option == f"parallel.{axis}"] for axis in CUTS}
    axes = [axis for axis in CUTS if getattr(parallel, axis) > 1]
    axes.sort(key=lambda axis: not own[axis])
    attempts = [(axis, layout) for axis in axes if len(layout) > 1 or own[axis]]
    attempts += [(axis, own[axis]) for axis in axes]
    for axis, group in attempts:
        if not group or group[0] not in result:
            continue
        for degrees in _smaller(parallel, axis):
            left = set(map(_kind, check(degrees)))
            if left <= known and left.isdisjoint(map(_kind, group)):
                gone = [p for p in result if p.rule in OF_LAYOUT and _kind(p) not in left]
                result[result.index(group[0])] = _merged(gone, parallel, axis, degrees)
                result = [problem for problem in result if problem not in gone]
                break
    return result


def _kind(problem: Problem) -> tuple[str, str]:
    return problem.rule, problem.option


def _smaller(parallel: Parallel, axis: str) -> Iterator[dict[str, int]]:
    """Smaller degrees, the largest first; also with as many shards as they leave, if given."""
    for size in range(min(getattr(parallel, axis) - 1, LARGEST), 0, -1):
        yield {f"parallel.{axis}": size}
        if parallel.dp_shard != -1:
            yield {f"parallel.{axis}": size, "parallel.dp_shard": -1}


def _merged(
    group: Sequence[Problem], parallel: Parallel, axis: str, degrees: Mapping[str, int]
) -> Problem:
    """One problem: what must be divisible by the same is listed, other sentences follow."""
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
    fix = " ".join(f"{key}={size}" for key, size in degrees.items())
    if len(group) == 1 and group[0].fix:
        fix += f" or {group[0].fix}"
    key = f"parallel.{axis}={getattr(parallel, axis)}"
    return replace(of_degrees[0], key=key, what="; ".join(parts) + ".", fix=fix)
