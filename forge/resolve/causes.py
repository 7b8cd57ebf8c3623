"""Problems that come of one degree of parallelism, told as one, with the largest smaller degree
that none of them is left with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from forge.config.parallel import Parallel
from forge.config.problems import Problem
from forge.resolve.auto import SHAPE_RULES

CUTS = ("tp", "pp", "ep", "cp")
SHAPES = {rule.id for rule in SHAPE_RULES if not rule.warning}
LAYOUT = SHAPES | {"parallel.world_size", "run.gpus"}
DIVISIBLE = " must be divisible by "
MOST = 64  # the largest degree that is tried

Again = Callable[[Mapping[str, int]], Sequence[Problem]]


def of_one_cause(problems: Sequence[Problem], parallel: Parallel, again: Again) -> list[Problem]:
    """The same problems, but for those of the layout that one smaller degree mends, which become
    one.

    parallel: as it was given. again: the errors that are left with other degrees, by key.
    """
    layout = [problem for problem in problems if problem.rule in LAYOUT]
    if SHAPES.isdisjoint(problem.rule for problem in layout):
        return list(problems)
    known, result = {_kind(problem) for problem in problems}, list(problems)
    own = {
        axis: [problem for problem in layout if problem.option == f"parallel.{axis}"]
        for axis in CUTS
        if getattr(parallel, axis) > 1
    }
    axes = sorted(own, key=lambda axis: not own[axis])
    attempts = [(axis, layout) for axis in axes if len(layout) > 1 or own[axis]] + [
        (axis, own[axis]) for axis in axes
    ]
    for axis, group in attempts:
        if not group or group[0] not in result:
            continue
        for degrees in _smaller(parallel, axis):
            left = {_kind(problem) for problem in again(degrees)}
            if left <= known and left.isdisjoint(map(_kind, group)):
                gone = [
                    problem
                    for problem in result
                    if problem.rule in LAYOUT and _kind(problem) not in left
                ]
                result[result.index(group[0])] = _merged(gone, parallel, axis, degrees)
                result = [problem for problem in result if problem not in gone]
                break
    return result


def _kind(problem: Problem) -> tuple[str, str]:
    return problem.rule, problem.option


def _smaller(parallel: Parallel, axis: str) -> Iterator[dict[str, int]]:
    """Smaller degrees, the largest first; where the number of shards was given, also with as many
    as the ranks leave.
    """
    for size in range(min(getattr(parallel, axis) - 1, MOST), 0, -1):
        yield {f"parallel.{axis}": size}
        if parallel.dp_shard != -1:
            yield {f"parallel.{axis}": size, "parallel.dp_shard": -1}


def _merged(
    group: Sequence[Problem], parallel: Parallel, axis: str, degrees: Mapping[str, int]
) -> Problem:
    of_shape = [problem for problem in group if problem.rule in SHAPES]
    fix = " ".join(f"{key}={size}" for key, size in degrees.items())
    if len(group) == 1 and group[0].fix:
        fix += f" or {group[0].fix}"
    return replace(
        of_shape[0],
        key=f"parallel.{axis}={getattr(parallel, axis)}",
        what=_together([p.what for p in of_shape]),
        fix=fix,
    )


def _together(sentences: Sequence[str]) -> str:
    """Several sentences as one; what must be divisible by the same is listed."""
    by_end: dict[str, list[str]] = {}
    for sentence in sentences:
        start, sign, end = sentence.removesuffix(".").rpartition(DIVISIBLE)
        by_end.setdefault(f"{sign}{end}" if sign else "", []).append(start or end)
    parts = []
    for end, starts in by_end.items():
        listed = (
            ", ".join(starts[:-1]) + " and " + starts[-1]
            if end and len(starts) > 1
            else "; ".join(starts)
        )
        parts.append(listed + end)
    return "; ".join(parts) + "."
