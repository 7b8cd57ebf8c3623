"""The numbers of a report: the results of each arm, its difference from the baseline, and its
time to a target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from forge.config.numbers import Decimals
from forge.config.problems import COMMAND_LINE, ConfigError, closest, did_you_mean, refusal
from forge.launch.sweep.results import is_best_high
from forge.launch.sweep.state import DONE, FAILED
from forge.report.factors import Factor, factors
from forge.report.grouping import Arm, arms_of, differing, normal
from forge.report.logs import TimeToTarget, time_to_target
from forge.report.runs import Run, Source
from forge.report.statistics import BySeed, Difference, Summary, difference, holm, summarize
from forge.report.swept import ARM, Swept, level, levels, swept, value_of_arm
from forge.rundir.directory import short


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    arm: Arm
    values: dict[int, list[float]]
    summary: Summary
    difference: Difference = field(default_factory=Difference)
    p_holm: float | None = None
    to_target: TimeToTarget = field(default_factory=TimeToTarget)

    @property
    def name(self) -> str:
        return self.arm.name


@dataclass(frozen=True, kw_only=True)
class Report:
    """The comparison of a sweep's arms: a row per arm, in the order of the sweep.

    higher: a higher metric is better. compared: with the baseline. A sweep with one run per arm (a
    search) and without a named baseline is ranked. named: somebody named the baseline; else it is
    the best arm, of single runs the first. target: the value to reach. options: the varied ones.
    factors: of a grid of several options.
    """

    source: Source
    metric: str
    higher: bool
    rows: list[Row]
    baseline: Row
    named: bool
    compared: bool
    target: float | None
    target_from: str
    options: list[Swept]
    factors: list[Factor]

    @property
    def runs(self) -> list[Run]:
        return self.source.runs

    @property
    def others(self) -> list[Row]:
        return [row for row in self.rows if row is not self.baseline]

    @cached_property
    def ranked(self) -> list[Row]:
        """The rows, best first; compared arms are ranked by their differences.

        The means alone may mislead: an arm may have only its luckier seeds done.
        """

        def loss(row: Row) -> float:
            value = row.summary.mean
            if value is not None and self.compared and self.baseline.summary.n:
                value = row.difference.mean or 0.0
            return math.inf if value is None else -value if self.higher else value

        return sorted(self.rows, key=loss)

    def shown(self, most: int | None = None) -> list[Row]:
        """The rows of a table. most: number of rows beside the baseline, best first."""
        if not self.compared:
            return self.ranked[:most]
        if most is None or len(self.others) <= most:
            return self.rows
        return [self.baseline, *[row for row in self.ranked if row is not self.baseline][:most]]

    @cached_property
    def decimals(self) -> Decimals:
        """Writes values of the metric."""
        summaries = [row.summary for row in self.rows]
        means = [summary.mean for summary in summaries if summary.mean is not None]
        return Decimals.of([summary.deviation or 0.0 for summary in summaries], means)

    @property
    def without_value(self) -> list[Run]:
        return [run for run in self.runs if run.state == DONE and self.metric not in run.final]

    @cached_property
    def differing(self) -> list[str]:
        """The options differing between arms, with the seed where no arm has several runs."""
        single = all(len(row.arm.runs) == 1 for row in self.rows)
        return differing([row.arm.config for row in self.rows if row.arm.config], seeds=single)

    def label(self, run: Run) -> str:
        """The number of a run in its sweep; the directory name of a single run."""
        return f"{run.point.number:03d}" if self.source.path else run.point.slug

    @cached_property
    def arm_of(self) -> dict[Run, str]:
        return {run: row.name for row in self.rows for run in row.arm.runs}


def compare_arms(
    source: Source,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
) -> Report:
    """Compare the arms of a source. Raises ConfigError.

    metric: None for run.objective. baseline: an arm, or a value of an option (lr=0.001), whose best
    arm it is; None for the sweep's baseline, else the best arm (of single runs, the first). reach:
    the target; None for the mean of a named baseline, else of the arm in the middle.
    """
    metric = _metric(source, metric)
    arms = arms_of(source.runs, source.name)
    options = swept(source.runs, arms)
    higher = _is_higher(source, metric)
    rows, asked = [_row(arm, metric) for arm in arms], baseline or source.baseline
    base = _baseline(rows, source, asked, options, higher, typed=baseline is not None)
    compared = baseline is not None or _has_baseline(source, arms)
    target, target_from = _target(rows, rows[base], asked is not None, higher)
    if reach is not None or not compared:
        target, target_from = reach, "as asked for"
    if compared and rows[base].summary.n:
        rows = _corrected([_against(row, rows[base]) for row in rows])
    if target is not None:
        rows = [_timed(row, metric, target, higher) for row in rows]
    return Report(
        source=source,
        metric=metric,
        higher=higher,
        rows=rows,
        baseline=rows[base],
        named=asked is not None,
        compared=compared,
        target=target,
        target_from=target_from,
        options=options,
        factors=_factors(rows, options, asked, higher),
    )


def _is_higher(source: Source, metric: str) -> bool:
    """Whether a higher metric is better, by the runs' objectives and sweepers."""
    sweepers = (run.config.get("sweeper", {}) for run in source.runs if run.objective == metric)
    names = (name for run in source.runs for name in run.higher_is_better)
    return is_best_high(metric, names, sweepers)


def cells_of(rows: Sequence[Row], options: Sequence[Swept]) -> dict[tuple[str, ...], BySeed]:
    """Results by the values of all options; {} where two arms have the same ones."""
    cells: dict[tuple[str, ...], BySeed]
    cells = {tuple(str(value_of_arm(row.arm, o.key)) for o in options): row.values for row in rows}
    return cells if len(cells) == len(rows) else {}


def _factors(
    rows: Sequence[Row], options: Sequence[Swept], asked: str | None, higher: bool
) -> list[Factor]:
    """The factors of a grid, compared with the values that the baseline names."""
    keys, cells = [option.key for option in options], cells_of(rows, options)
    references = {}
    if asked is not None and (named := level(asked, options)):
        references = {named[0].key: named[1]}
    elif asked is not None:
        row = next((row for row in rows if row.name in (asked, normal(asked))), None)
        references = {key: str(value_of_arm(row.arm, key)) for key in keys} if row else {}
        if ARM in keys and asked in (values := options[keys.index(ARM)].values):
            references = {ARM: values[values.index(asked)]}
    return factors(options, cells, higher=higher, references=references)


def _row(arm: Arm, metric: str) -> Row:
    values: dict[int, list[float]] = {}
    for run in arm.done:
        if metric in run.final and run.seed is not None:
            values.setdefault(run.seed, []).append(run.final[metric])
    summary = summarize([value for of_seed in values.values() for value in of_seed])
    return Row(arm=arm, values=values, summary=summary)


def _has_baseline(source: Source, arms: Sequence[Arm]) -> bool:
    """Whether arms are compared with a baseline, not ranked; see `Report`."""
    named = source.baseline is not None or source.path is None
    return named or any(len(arm.runs) > 1 for arm in arms)


def _best(rows: Sequence[Row], higher: bool) -> int:
    """The number of the row with the best mean, among those with the most seeds.

    The mean of an arm with fewer seeds may be that of the luckier ones.
    """
    sign, most = -1 if higher else 1, max(len(row.values) for row in rows)
    return min(
        (i for i, row in enumerate(rows) if row.summary.n and len(row.values) == most),
        key=lambda i: sign * (rows[i].summary.mean or 0.0),
        default=0,
    )


def _target(rows: Sequence[Row], base: Row, named: bool, higher: bool) -> tuple[float | None, str]:
    """The mean of a named baseline, else of the arm in the middle, which half of the arms reach."""
    reached = [row for row in rows if row.summary.n]
    if not named and len(reached) > 1:
        sign = -1 if higher else 1
        reached.sort(key=lambda row: sign * (row.summary.mean or 0.0))
        base = reached[len(reached) // 2]
    kind = "mean" if base.summary.n > 1 else "value"
    return base.summary.mean, f"the {kind} of {base.name}"


def _against(row: Row, baseline: Row) -> Row:
    """A row with its difference from the baseline."""
    if row is baseline or not row.values:
        return row
    return replace(row, difference=difference(row.values, baseline.values))


def _corrected(rows: Sequence[Row]) -> list[Row]:
    """The rows with their p-values corrected for the number of tests."""
    corrected = holm([row.difference.p for row in rows])
    return [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _timed(row: Row, metric: str, target: float, higher: bool) -> Row:
    """A row with the time of its runs to the target."""
    if not row.arm.done:
        return row
    curves = [run.log.curve(metric) for run in row.arm.done]
    return replace(row, to_target=time_to_target(curves, target, higher=higher))


def _nothing_done(source: Source) -> ConfigError:
    """The refusal of a source without a run that is done."""
    counts = Counter(run.state for run in source.runs)
    listed = ", ".join(f"{n} {state}" for state, n in counts.items()) or "it has no points"
    message = f"there is nothing to compare yet, for no run is done: {listed}."
    failed = [run for run in source.runs if run.state == FAILED and run.why]
    message += "".join(f"\n     {run.point.slug}: {run.why}" for run in failed)
    hint = "wait until one is done"
    if source.path:
        hint = f"python -m forge.status {short(source.path)} shows how far they are"
    return refusal(source.name, message, hint)


def _metric(source: Source, asked: str | None) -> str:
    done = [run for run in source.runs if run.state == DONE]
    if not done:
        raise _nothing_done(source)
    objectives = Counter(run.objective for run in done if run.objective is not None)
    common = [name for name, _ in objectives.most_common()]
    if asked is None and len(common) != 1:
        listed = ", ".join(f"{name} ({objectives[name]})" for name in common) or "none"
        message = f"the runs do not have one run.objective: {listed}."
        raise refusal("--metric", message, f"--metric {[*common, 'train/loss'][0]}", COMMAND_LINE)
    metric = asked or common[0]
    names = dict.fromkeys(name for run in done for name in run.final)
    if metric not in names:
        message = f"no run that is done has a final value of {metric}."
        meant = did_you_mean([f"--metric {name}" for name in closest(metric, names)])
        hint = meant or f"they have {', '.join(names) or 'none'}"
        raise refusal(f"--metric {metric}", message, hint, COMMAND_LINE)
    return metric


def _baseline(
    rows: Sequence[Row],
    source: Source,
    asked: str | None,
    options: Sequence[Swept],
    higher: bool,
    *,
    typed: bool,
) -> int:
    """The number of the baseline's row. typed: on the command line; raises ConfigError then."""
    names = [row.name for row in rows]
    if asked is None:
        return _best(rows, higher) if source.path else 0
    for name in (asked, normal(asked)):
        if name in names:
            return names.index(name)
    of_level = _of_level(rows, asked, options)
    if of_level:
        best = _best([rows[i] for i in of_level], higher)
        return of_level[best]
    if not typed:
        return _best(rows, higher) if source.path else 0
    meant = did_you_mean([f"--baseline '{name}'" for name in closest(asked, names)])
    if not meant and len(options) > 1:
        meant = did_you_mean([f"--baseline {name}" for name in levels(options, asked)])
    hint = meant or f"its arms are {', '.join(names)}"
    raise refusal(f"--baseline {asked}", f"there is no arm '{asked}'.", hint, COMMAND_LINE)


def _of_level(rows: Sequence[Row], asked: str, options: Sequence[Swept]) -> list[int]:
    """The numbers of the rows with a value of an option, or with an arm of the ablation."""
    arm = next((o for o in options if o.key == ARM and asked in o.values), None)
    named = (arm, asked) if arm else level(asked, options)
    if named is None:
        return []
    return [i for i, row in enumerate(rows) if value_of_arm(row.arm, named[0].key) == named[1]]
