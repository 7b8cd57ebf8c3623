"""The question of a sweep, and its decision rule judged by the results."""

from __future__ import annotations

from forge.report.comparison import Report, cells_of
from forge.report.factors import factors
from forge.report.grouping import normal
from forge.report.statistics import Difference, difference
from forge.report.swept import level
from forge.resolve import decision
from forge.resolve.decision import Decision

HOLDS, FAILS, OPEN = "holds", "does not hold", "is open"


def sentences(report: Report) -> list[str]:
    """Question and hypothesis as stated, and the verdict on the decision rule."""
    plan = report.source.plan
    words = [str(plan[name]) for name in ("question", "hypothesis") if name in plan]
    lines = [" Expected: ".join(words)] if words else []
    rule = decision.parse(str(plan.get("decision", "")))
    if rule:
        lines.append(f"{plan['decision']}: {_judged(rule, report)}{_stated(report)}.")
    return lines


def verdict(rule: Decision, diff: Difference, *, higher: bool) -> str:
    """Whether a rule holds: by the 95 % interval of the difference, first minus second.

    It holds where the whole interval is beyond the margin, does not where all of it is short of it,
    and is open else.
    """
    if diff.low is None or diff.high is None:
        return OPEN
    low, high = (diff.low, diff.high) if higher else (-diff.high, -diff.low)
    return HOLDS if low > rule.margin else FAILS if high < rule.margin else OPEN


def _judged(rule: Decision, report: Report) -> str:
    diff = _difference(rule, report)
    if diff is None or diff.mean is None:
        return "is open, for there are no results of both"
    write = report.decimals
    size = f"{report.metric} {write.signed(diff.mean)}"
    if diff.low is None:
        return f"{OPEN} ({size}, without an interval: {diff.why})"
    span = write.interval(diff.low, diff.high, sign="+")
    return f"{verdict(rule, diff, higher=report.higher)} ({size}, 95 % interval {span})"


def _difference(rule: Decision, report: Report) -> Difference | None:
    """The first minus the second: the paired effect of two values in a grid, else of two arms."""
    sides = [level(name, report.options) for name in (rule.first, rule.second)]
    if all(sides) and report.factors:
        (option, first), (other, second) = (side for side in sides if side)
        cells = cells_of(report.rows, report.options)
        references = {option.key: second}
        made = factors(report.options, cells, higher=report.higher, references=references)
        effects = [e for f in made if f.key == option.key == other.key for e in f.effects]
        return next((e.difference for e in effects if e.value == first), None)
    values = [_values(name, report) for name in (rule.first, rule.second)]
    return difference(*values) if all(values) else None


def _values(name: str, report: Report) -> dict[int, list[float]]:
    named = level(name, report.options)
    names = {name, normal(name)} | ({f"{named[0].word}={named[1]}"} if named else set())
    return next((row.values for row in report.rows if row.name in names), {})


def _stated(report: Report) -> str:
    before = report.source.plan.get("ended_before")
    return f"; stated after {before} of the runs had ended" if before else ""
