"""What a sweep can show, before it runs: the smallest difference that its seeds, and the items of
its evaluations, find with 80 % power.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from forge.config.numbers import NOTHING, counted
from forge.launch.sweep.directory import SWEEP, SweepDirectory
from forge.launch.sweep.preflight import Planned
from forge.report.runs import SEED
from forge.rundir import outcome
from forge.rundir.directory import short
from forge.rundir.files import rows_if_readable

LOOKED_AT = 20  # newest sweeps searched for a spread
TESTED = "a paired t-test at 5 % with 80 % power"
Table = dict[str, dict[int, float]]
"""Results of the arms by seed."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviation of a difference between two runs of one seed, and its source."""

    deviation: float
    freedom: int
    sweep: Path


def lines(planned: Sequence[Planned]) -> list[str]:
    """Sentences for the points of a sweep; [] for one that compares nothing."""
    arms: dict[tuple[tuple[str, str], ...], set[int]] = defaultdict(set)
    for point in planned:
        named = point.combination.named
        key = tuple(sorted((k, v) for k, v in named.items() if k != SEED))
        arms[key].add(point.resolution.config.seed)
    config = planned[0].resolution.config
    seeds = len(set.intersection(*arms.values()))
    if len(arms) < 2:
        return []
    objective = str(config.run.objective)
    found = spread(_sweeps(config.sweep.root, config.sweep.name), objective)
    return [_of_seeds(seeds, found, objective), *_of_items(found)]


def spread(sweeps: Sequence[Path], objective: str) -> Spread | None:
    """The spread of the first sweep with two arms of two common seeds or more, and this objective.

    It is that of the residuals from arm and seed, times the root of two, as a difference has two
    runs.
    """
    for path in sweeps:
        table = _results(path, objective)
        if (residual := _residual(table)) is not None:
            variance, freedom = residual
            return Spread(deviation=(2 * variance) ** 0.5, freedom=freedom, sweep=path)
    return None


def _of_seeds(seeds: int, found: Spread | None, objective: str) -> str:
    from forge.statistics.power import enough, smallest_difference  # imports scipy

    if seeds < 2:
        hint = "seed=1,2,3 gives each arm three"
        return f"can show: no difference, as arms have no two seeds in common ({hint})"
    if found is None:
        size = smallest_difference(1.0, seeds) or 0.0
        return (
            f"can show: with {counted(seeds, 'seed')}, a difference of {size:.2g} standard "
            f"deviations of a pair ({TESTED}); no sweep has run whose spread would say how much "
            f"{objective} that is"
        )
    smallest = smallest_difference(found.deviation, seeds) or 0.0
    half = enough(found.deviation, smallest / 2)
    return (
        f"can show: with {counted(seeds, 'seed')}, a difference of {smallest:.3g} {objective} "
        f"between two arms ({TESTED}; spread of {found.deviation:.3g} from {short(found.sweep)}, "
        f"{found.freedom} degrees of freedom); half of it takes "
        f"{counted(half, 'seed') if half else NOTHING}"
    )


def _of_items(found: Spread | None) -> list[str]:
    """A sentence for each task of 0 or 1 that a run of that sweep was evaluated on."""
    from forge.report.items import evaluated
    from forge.statistics.power import smallest_rate_difference

    if found is None:
        return []
    points = SweepDirectory(found.sweep).points()
    files = next((files for point in points if (files := evaluated(point.path))), {})
    result = []
    for task, path in files.items():
        values = [row.get("metrics", {}).get("accuracy") for row in rows_if_readable(path)]
        known = [float(value) for value in values if value is not None]
        rate = sum(known) / len(known) if known else 0.0
        if set(known) <= {0.0, 1.0} and 0 < rate < 1:
            points_of_100 = 100 * smallest_rate_difference(rate, len(known))
            result.append(
                f"can show: with the {counted(len(known), 'item')} of {task}, "
                f"{points_of_100:.2g} points of accuracy between two runs (paired by item, "
                f"correlation 0.5, 80 % power)"
            )
    return result


def _sweeps(root: str, name: str | None) -> list[Path]:
    """The sweeps below a folder: that of the name first, then the newest."""
    folder = Path(root).expanduser()
    found = [path.parent for path in islice(folder.glob(f"*/{SWEEP}"), 10 * LOOKED_AT)]
    found.sort(key=lambda path: (path.name == name, (path / SWEEP).stat().st_mtime), reverse=True)
    return found[:LOOKED_AT]


def _results(path: Path, objective: str) -> Table:
    table: Table = defaultdict(dict)
    for point in SweepDirectory(path).points():
        try:
            result = outcome.read_result(point.path)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        value = result.metrics.get(objective, result.objective) if result else None
        seed = point.varied.get(SEED)
        if isinstance(value, int | float) and value == value and seed is not None:
            others = {k: v for k, v in point.varied.items() if k != SEED}
            table[f"{point.arm} {others}"][int(seed)] = float(value)
    return table


def _residual(table: Table) -> tuple[float, int] | None:
    """The mean square of the residuals from arm and seed over the common seeds, and its degrees of
    freedom; None for fewer than two arms of two seeds.
    """
    arms = [by_seed for by_seed in table.values() if len(by_seed) > 1]
    seeds = sorted(set[int].intersection(*map(set, arms))) if len(arms) > 1 else []
    if len(seeds) < 2:
        return None
    rows = [[by_seed[seed] for seed in seeds] for by_seed in arms]
    n, k = len(rows), len(seeds)
    grand = sum(map(sum, rows)) / (n * k)
    of_arm = [sum(row) / k for row in rows]
    of_seed = [sum(row[j] for row in rows) / n for j in range(k)]
    squares = sum(
        (rows[i][j] - of_arm[i] - of_seed[j] + grand) ** 2 for i in range(n) for j in range(k)
    )
    freedom = (n - 1) * (k - 1)
    return (squares / freedom, freedom) if squares > 0 else None
