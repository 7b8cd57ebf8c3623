"""A report as a few tables of text: the same for a terminal, Markdown and the page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from forge.config.numbers import NOTHING, Decimals, compact, counted, duration, p_value
from forge.launch.sweep.state import DONE, FAILED, RUNNING
from forge.report.comparison import Report, Row
from forge.report.runs import Run
from forge.report.statistics import NONE, PAIRED, WELCH

ALPHA = 0.05
SEE_ALL = "all of them: --top {n}, or {file} (--{flag} FILE)."
INTERVAL = " The interval is Student's t over the runs that are done."
SAME = "cannot be told from it"
LEFT, RIGHT = "left", "right"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, a line of heads, lines of cells, and sentences that say what they mean. name: for
    tests and links.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    lines: list[tuple[str, ...]]
    notes: list[str]
    align: tuple[str, ...] = ()

    @property
    def of_runs(self) -> bool:
        """Whether its lines are runs, and not arms."""
        return self.heads[0] == "run"

    def side(self, column: int) -> str:
        """The side that a column's cells stand on."""
        return self.align[column] if column < len(self.align) else LEFT


def tables(report: Report, most: int | None = None) -> list[Table]:
    """All tables of a report that have a line. most: arms, or runs, in each of them; None for all."""
    found = [
        make(report, most) for make in (reached_values, differences, how_soon, configs, unfinished)
    ]
    return [table for table in found if table.lines]


def reached_values(report: Report, most: int | None = None) -> Table:
    """What each arm reached: runs, mean, deviation and interval over seeds."""
    lines, write, several = (
        [],
        decimals(report),
        any(row.summary and row.summary.n > 1 for row in report.rows),
    )
    for row in report.shown(most):
        n, found = len(row.arm.runs), row.summary
        cells = (
            (
                write.number(found.mean),
                write.number(found.deviation),
                write.interval(found.low, found.high),
            )
            if found
            else (NOTHING,) * 3
        )
        lines.append(
            (
                _named(row, report),
                f"{found.n if found else 0} of {n}",
                *(cells if several else cells[:1]),
            )
        )
    notes = [
        *_arms_left_out(report, most),
        f"{'Higher' if report.higher else 'Lower'} is better.{INTERVAL if several else ''}",
    ]
    if report.without:
        are = "run is" if len(report.without) == 1 else "runs are"
        notes.append(
            f"{len(report.without):,} {are} done without a value of {report.metric}, which does not count here."
        )
    notes += _lengths(report)
    paired = any(row.difference and row.difference.method == PAIRED for row in report.others)
    if paired and len({frozenset(row.values) for row in report.rows if row.summary}) > 1:
        notes.append(
            "Not every arm has the same seeds done, so compare arms by the differences, which are of the same seeds."
        )
    single = [row.name for row in report.rows if row.summary and row.summary.n == 1]
    if single:
        who = (
            "every arm has"
            if len(single) == len(report.rows)
            else f"{_listed(single)} {'has' if len(single) == 1 else 'have'}"
        )
        several_arms = f", and {who} only one that is done" if report.others else ""
        notes.append(f"One run gives no deviation and no interval{several_arms}.")
    if report.others and report.compared and not report.baseline.summary:
        notes.append(
            f"The baseline {report.baseline.name} has no run that is done, so nothing is compared with it."
        )
    title = f"{report.metric} at the end"
    heads = ("arm", "done", *(("mean", "deviation", "95 % interval") if several else ("value",)))
    return Table(
        name="arms", title=title, heads=heads, lines=lines, notes=notes, align=(LEFT, *[RIGHT] * 4)
    )


def differences(report: Report, most: int | None = None) -> Table:
    """Each arm minus the baseline, with interval and p-value."""
    compared = [(row, row.difference) for row in report.shown(most) if row.difference is not None]
    write, lines = decimals(report), []
    ways = {PAIRED: "{} pairs", WELCH: "Welch", NONE: ""}
    tests = [ways[found.method].format(found.n) or found.why for _, found in compared]
    for row, found in compared:
        span = write.interval(found.low, found.high, sign="+")
        lines.append(
            (row.name, write.signed(found.mean), span, p_value(found.p), p_value(row.p_holm))
        )
    if len(set(tests)) > 1:
        lines = [(*line, test) for line, test in zip(lines, tests, strict=True)]
    methods = {found.method for _, found in compared}
    notes = _arms_left_out(report, most)
    if PAIRED in methods:
        pairs = sorted({found.n for _, found in compared if found.method == PAIRED})
        seeds = " to ".join(map(str, pairs[:: max(len(pairs) - 1, 1)]))
        notes.append(
            f"Paired by seed: a t-test (ttest_rel) of the differences between two runs of the same seed, over {seeds} seeds."
        )
    if WELCH in methods:
        notes.append(
            "Welch: too few seeds are common to pair by, so it is a t-test of unequal variances (ttest_ind)."
        )
    if len(set(tests)) == 1 and methods == {NONE}:
        notes.append(f"Without interval and p-value: {tests[0]}.")
    tested = [row for row in report.others if row.difference and row.difference.p is not None]
    if len(tested) > 1:
        notes.append(
            f"p is two-sided; p (Holm) is corrected for {len(tested)} comparisons. The intervals are of 95 % each, uncorrected."
        )
    elif tested:
        notes.append("p is two-sided; a single comparison needs no correction.")
    title = f"difference to {report.baseline.name}"
    heads = (
        "arm",
        "difference",
        "95 % interval",
        "p",
        "p (Holm)",
        *(["test"] if len(set(tests)) > 1 else []),
    )
    return Table(
        name="differences",
        title=title,
        heads=heads,
        lines=lines,
        notes=notes,
        align=(LEFT, *[RIGHT] * 4, LEFT),
    )


def how_soon(report: Report, most: int | None = None) -> Table:
    """Steps, tokens and time to reach the target."""
    lines = []
    for row in report.shown(most):
        found = row.reached
        if found is not None:
            cells = (compact(found.step), compact(found.tokens), duration(found.seconds))
            lines.append((_named(row, report), f"{found.n} of {found.of}", *cells))
    way, target = "at least" if report.higher else "at most", decimals(report).number(report.target)
    notes = [
        *_arms_left_out(report, most),
        f"Medians over the runs that are done, of the first log with {report.metric} {way} {target}, {report.target_said}; a run that "
        "never reached it counts as later than all. Time is of training: evaluation, checkpoints and waiting are left out.",
    ]
    title = f"how soon {report.metric} reached {target}"
    heads = ("arm", "reached", "steps", "tokens", "time")
    return Table(
        name="reach", title=title, heads=heads, lines=lines, notes=notes, align=(LEFT, *[RIGHT] * 4)
    )


def configs(report: Report, most: int | None = None) -> Table:
    """In what the config of each arm differs from the baseline's, or from that of the best where
    arms are ranked.
    """
    base, lines = report.baseline.arm.options, []
    keys = report.differing
    for row in report.shown(most):
        if row is report.baseline:
            continue
        own = row.arm.options
        found = [
            f"{key}: {base.get(key, 'none')} → {own.get(key, 'none')}"
            for key in keys
            if own and own.get(key) != base.get(key)
        ]
        lines.append((row.name, "; ".join(found) or ("nothing" if own else "not prepared yet")))
    if not base or not keys:
        lines = []
    heads = (
        "arm",
        f"differs from {report.baseline.name}{'' if report.compared else ', the best,'} in",
    )
    return Table(
        name="configs",
        title="config",
        heads=heads,
        lines=lines,
        notes=_arms_left_out(report, most),
        align=(LEFT, LEFT),
    )


def unfinished(report: Report, most: int | None = None) -> Table:
    """Runs that count in no number above, each with what became of it; of more than `most`, those
    that failed first.
    """
    without = set(report.without)
    left = [run for run in report.runs if run.state != DONE or run in without]
    notes = []
    if most is not None and len(left) > most:
        notes.append(
            f"{most:,} of {len(left):,} runs, those that failed first; {SEE_ALL.format(n=len(left), file='runs.csv', flag='runs-csv')}"
        )
        left = sorted(left, key=lambda run: run.state != FAILED)[:most]
    lines = [
        (
            report.label(run),
            report.arm_of(run),
            NOTHING if run.seed is None else str(run.seed),
            *_became(run, report),
        )
        for run in left
    ]
    silent = report.source.silent
    notes += (
        [f"Slurm does not answer, so its jobs are shown as their directories have them: {silent}"]
        if silent
        else []
    )
    return Table(
        name="unfinished",
        title="not counted",
        heads=("run", "arm", "seed", "state", ""),
        lines=lines,
        notes=notes,
    )


def runs_table(report: Report, most: int | None = None) -> Table:
    """Every run: what it reached, or how far it is. most: the first of them."""
    lines, write = [], decimals(report)
    for run in report.runs[:most]:
        seed = NOTHING if run.seed is None else str(run.seed)
        value = write.number(run.final.get(report.metric))
        lines.append(
            (report.label(run), report.arm_of(run), seed, run.state, f"{run.step:,}", value)
        )
    heads = ("run", "arm", "seed", "state", "step", report.metric)
    notes = (
        [f"The first {most:,} of {len(report.runs):,} runs; runs.csv has all."]
        if most and len(report.runs) > most
        else []
    )
    return Table(
        name="runs",
        title="",
        heads=heads,
        lines=lines,
        notes=notes,
        align=(LEFT, LEFT, RIGHT, LEFT, RIGHT, RIGHT),
    )


def headline(report: Report) -> list[str]:
    """What the report comes to, in a sentence or two."""
    best = report.ranked[0]
    several = sum(row.summary is not None for row in report.rows) > 1
    counts = ", ".join(
        f"{n:,} {state}"
        for state, n in sorted(report.states.items(), key=lambda pair: pair[0] != DONE)
    )
    lacking = (
        f"; {len(report.without):,} of those done without a value of {report.metric}"
        if report.without
        else ""
    )
    said = [
        f"{counted(len(report.runs), 'run')} in {counted(len(report.rows), 'arm')}: {counts}{lacking}."
    ]
    said.append(
        f"{'Best' if several else 'Mean'} {report.metric}: {decimals(report).number(best.summary and best.summary.mean)}, {best.name}."
    )
    told = [
        (row.name, verdict(row, report.higher)) for row in report.others if row.p_holm is not None
    ]
    if told:
        level = "at 5 % after Holm" if len(told) > 1 else "at 5 %"
        said.append(f"Against {report.baseline.name}, {level}: {_verdicts(told)}.")
    return said


def decimals(report: Report) -> Decimals:
    """How the values of the metric are written."""
    found = [row.summary for row in report.rows if row.summary]
    return Decimals.of([one.deviation or 0.0 for one in found], [one.mean for one in found])


def verdict(row: Row, higher: bool) -> str:
    """'better' or 'worse' than the baseline at 5 % after Holm's correction; empty where that cannot
    be told.
    """
    if row.difference is None or row.p_holm is None or row.p_holm >= ALPHA:
        return ""
    return "better" if (row.difference.mean > 0) == higher else "worse"


def _verdicts(told: list[tuple[str, str]]) -> str:
    words = []
    for verdict, singular, plural in (
        ("better", "is better", "are better"),
        ("worse", "is worse", "are worse"),
        ("", SAME, SAME),
    ):
        names = [name for name, found in told if found == verdict]
        if names and len(names) == len(told) > 1:
            return (
                f"no arm {SAME.replace('cannot', 'can')}" if not verdict else f"all arms {plural}"
            )
        if names:
            words.append(
                f"{_listed(names) if len(names) < 4 else f'{len(names)} arms'} {singular if len(names) == 1 else plural}"
            )
    return "; ".join(words)


def _named(row: Row, report: Report) -> str:
    return (
        f"{row.name} (baseline)"
        if row is report.baseline and report.others and report.compared
        else row.name
    )


def _arms_left_out(report: Report, most: int | None) -> list[str]:
    """A sentence where a table has not every arm."""
    n = len(report.others if report.compared else report.rows)
    if most is None or n <= most:
        return []
    who = (
        f"The baseline and the best {most:,} of {n:,} other arms"
        if report.compared
        else f"The best {most:,} of {n:,} arms"
    )
    return [f"{who}; {SEE_ALL.format(n=n, file='arms.csv', flag='csv')}"]


def _lengths(report: Report) -> list[str]:
    """A sentence where runs that are done ended at different steps."""
    ended = [run.ended for run in report.runs if run.ended]
    steps = sorted(step for step, _ in ended)
    if not steps or steps[0] == steps[-1]:
        return []
    early = Counter(reason for _, reason in ended if reason != "end")
    why = (
        f" ({', '.join(f'{n} ended by {reason}' for reason, n in early.items())})" if early else ""
    )
    return [f"The runs did not all train as long: {steps[0]:,} to {steps[-1]:,} steps{why}."]


def _became(run: Run, report: Report) -> tuple[str, str]:
    if run in report.without:
        return run.state, f"it has no value of {report.metric}"
    far = f"step {run.step:,}" + (f" of {run.of_steps:,}" if run.of_steps else "")
    return run.state, run.why or (far if run.step or run.state == RUNNING else "")


def _listed(names: list[str], most: int = 4) -> str:
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
