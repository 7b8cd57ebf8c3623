"""The numbers of a report: what each arm reached, how it differs from the baseline, how soon, and
what failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from forge.config.problems import COMMAND_LINE, ConfigError, Problem, closest, did_you_mean
from forge.launch.sweep.best import is_higher_better
from forge.launch.sweep.state import DONE, FAILED
from forge.report import flat_config
from forge.report.grouping import Arm, arms_of
from forge.report.runs import Run, Source
from forge.report.statistics import Difference, Summary, difference, holm, summarize
from forge.report.time_to_target import Reached, reached
from forge.rundir.directory import short


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """An arm with its numbers; None where it has no finished run, or where nothing can be said.
    p_holm: corrected for several arms.
    """

    arm: Arm
    values: dict[int, list[float]]
    summary: Summary | None
    difference: Difference | None
    p_holm: float | None
    reached: Reached | None

    @property
    def name(self) -> str:
        return self.arm.name


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is compared, and the rows, an arm each, in the order of the sweep. target: the value to
    reach, None where there is none.

    compared: with the baseline; where a sweep names none and has one run of each arm, as a search
    does, arms are ranked instead, and `baseline` is the best.
    """

    source: Source
    metric: str
    higher: bool
    rows: list[Row]
    baseline: Row
    compared: bool
    target: float | None
    target_said: str

    @property
    def runs(self) -> list[Run]:
        """All runs, in the order of the sweep."""
        return self.source.runs

    @property
    def others(self) -> list[Row]:
        """The rows apart from the baseline."""
        return [row for row in self.rows if row is not self.baseline]

    @cached_property
    def ranked(self) -> list[Row]:
        """The rows, best first, by the differences, which are not misled by an arm that has only
        its luckier seeds done; last those
        without a value."""
        return sorted(self.rows, key=self._standing)

    def shown(self, most: int | None = None) -> list[Row]:
        """The rows of a table, in the order of the sweep; the best first where arms are ranked, or
        some are left out.

        most: the best so many, apart from the baseline, which is always there.
        """
        if not self.compared:
            return self.ranked[:most]
        if most is None or len(self.others) <= most:
            return self.rows
        return [self.baseline, *[row for row in self.ranked if row is not self.baseline][:most]]

    def _standing(self, row: Row) -> float:
        if row.summary is None:
            return math.inf
        value = (
            (row.difference.mean if row.difference else 0.0)
            if self.compared and self.baseline.summary
            else row.summary.mean
        )
        return -value if self.higher else value

    @property
    def without(self) -> list[Run]:
        """Runs that finished without a value of the metric."""
        return [run for run in self.runs if run.state == DONE and self.metric not in run.final]

    @property
    def states(self) -> dict[str, int]:
        """How many runs are in which state."""
        return dict(Counter(run.state for run in self.runs))

    @cached_property
    def differing(self) -> list[str]:
        """The config keys in which arms differ; the seed among them where no arm has several."""
        alone = all(len(row.arm.runs) == 1 for row in self.rows)
        return flat_config.differing(
            (row.arm.options for row in self.rows if row.arm.options), seeds=alone
        )

    def label(self, run: Run) -> str:
        """What a run is called: its number in the sweep, which its directory begins with; a single
        run by its directory.
        """
        return f"{run.point.number:03d}" if self.source.path else run.point.slug

    def arm_of(self, run: Run) -> str:
        """The name of the arm that a run belongs to."""
        return self._arms[run]

    @cached_property
    def _arms(self) -> dict[Run, str]:
        return {run: row.name for row in self.rows for run in row.arm.runs}


def compare(
    source: Source,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
) -> Report:
    """Compare the arms of a source by a metric (None: run.objective), each with the baseline (None:
    the sweep's, else the first).

    reach: the value that tokens and time are counted to; None: the mean of the baseline, where
    there is one. Raises ConfigError.
    """
    metric = metric or _objective(source)
    arms = arms_of(source.runs, source.name)
    _check_metric(source, metric)
    higher = _higher(source, metric)
    base = _baseline(arms, source, baseline)
    declared = baseline is not None or source.baseline is not None
    compared = declared or source.path is None or any(len(arm.runs) > 1 for arm in arms)
    values = {arm: _values(arm, metric) for arm in arms}
    summaries = [
        summarize([value for of_seed in values[arm].values() for value in of_seed])
        if values[arm]
        else None
        for arm in arms
    ]
    if not compared:
        base = _best(arms, summaries, higher)
    tested = [compared and arm is not base and bool(values[arm] and values[base]) for arm in arms]
    differences = [
        difference(values[arm], values[base]) if test else None
        for arm, test in zip(arms, tested, strict=True)
    ]
    corrected = holm([found.p if found else None for found in differences])
    own = summaries[arms.index(base)]
    target = reach if reach is not None else own.mean if own and compared else None
    rows = [
        Row(
            arm=arm,
            values=values[arm],
            summary=summary,
            difference=found,
            p_holm=p,
            reached=_reached(arm, metric, target, higher),
        )
        for arm, summary, found, p in zip(arms, summaries, differences, corrected, strict=True)
    ]
    return Report(
        source=source,
        metric=metric,
        higher=higher,
        rows=rows,
        baseline=rows[arms.index(base)],
        compared=compared,
        target=target,
        target_said="as asked for"
        if reach is not None
        else f"the {'mean' if own and own.n > 1 else 'value'} of {base.name}",
    )


def _objective(source: Source) -> str:
    """The run.objective of the runs that are done, which must be one and the same."""
    done = [run for run in source.runs if run.state == DONE]
    if not done:
        raise ConfigError([_nothing_done(source)])
    names = Counter(run.objective for run in done if run.objective is not None)
    if len(names) == 1:
        return next(iter(names))
    found = ", ".join(f"{name} ({count})" for name, count in names.most_common()) or "none"
    fix = f"--metric {names.most_common(1)[0][0]}" if names else "--metric train/loss"
    raise ConfigError(
        [
            Problem(
                key="--metric",
                what=f"the runs do not have one run.objective: {found}.",
                fix=fix,
                where=COMMAND_LINE,
            )
        ]
    )


def _check_metric(source: Source, metric: str) -> None:
    done = [run for run in source.runs if run.state == DONE]
    if not done:
        raise ConfigError([_nothing_done(source)])
    known = dict.fromkeys(name for run in done for name in run.final)
    if metric not in known:
        what = f"no run that is done has a final value of {metric}."
        fix = (
            did_you_mean([f"--metric {name}" for name in closest(metric, known)])
            or f"they have {', '.join(known) or 'none'}"
        )
        raise ConfigError(
            [Problem(key=f"--metric {metric}", what=what, fix=fix, where=COMMAND_LINE)]
        )


def _nothing_done(source: Source) -> Problem:
    counts = Counter(run.state for run in source.runs)
    found = ", ".join(f"{count} {state}" for state, count in counts.items()) or "it has no points"
    what = f"there is nothing to compare yet, for no run is done: {found}."
    reasons = "".join(
        f"\n     {run.point.slug}: {run.why}"
        for run in source.runs
        if run.state == FAILED and run.why
    )
    fix = (
        f"python -m forge.status {short(source.path)} shows how far they are"
        if source.path
        else "wait until one is done"
    )
    return Problem(key=source.name, what=f"{what}{reasons}", fix=fix)


def _higher(source: Source, metric: str) -> bool:
    """Whether more is better: as a search for it was told, else as is known of our own metrics."""
    return is_higher_better(
        metric, (run.config.get("sweeper", {}) for run in source.runs if run.objective == metric)
    )


def _baseline(arms: Sequence[Arm], source: Source, name: str | None) -> Arm:
    wanted = name if name is not None else source.baseline
    found = [arm for arm in arms if arm.name == wanted] or [
        arm for arm in arms if wanted in arm.spelled
    ]
    if name is not None and not found:
        names = [arm.name for arm in arms]
        fix = (
            did_you_mean([f"--baseline '{near}'" for near in closest(name, names)])
            or f"its arms are {_some(names)}"
        )
        raise ConfigError(
            [
                Problem(
                    key=f"--baseline {name}",
                    what=f"there is no arm '{name}'.",
                    fix=fix,
                    where=COMMAND_LINE,
                )
            ]
        )
    return [*found, arms[0]][0]


def _some(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (
        f" and {len(names) - most:,} more" if len(names) > most else ""
    )


def _best(arms: Sequence[Arm], summaries: Sequence[Summary | None], higher: bool) -> Arm:
    found = [(arm, summary.mean) for arm, summary in zip(arms, summaries, strict=True) if summary]
    return (max if higher else min)(found, key=lambda pair: pair[1])[0] if found else arms[0]


def _values(arm: Arm, metric: str) -> dict[int, list[float]]:
    """The final values of the runs that are done, by seed."""
    found: dict[int, list[float]] = {}
    for run in arm.done:
        if metric in run.final and run.seed is not None:
            found.setdefault(run.seed, []).append(run.final[metric])
    return found


def _reached(arm: Arm, metric: str, target: float | None, higher: bool) -> Reached | None:
    if target is None or not arm.done:
        return None
    return reached([run.logged.series(metric) for run in arm.done], target, higher=higher)
