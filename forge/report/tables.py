"""A report as a few tables of text, the same on a terminal, in Markdown and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from forge.config.numbers import NOTHING, compact, counted, duration, p_value
from forge.launch.sweep.messages import NO_ANSWER
from forge.launch.sweep.state import DONE, FAILED, RUNNING
from forge.report import answers, decision, items
from forge.report.comparison import Report, Row
from forge.report.runs import Run
from forge.report.statistics import NONE, PAIRED, WELCH, Difference
from forge.report.table import Table, enumerated

ALPHA = 0.05
SEE_ALL = "all of them: --top {n}, or {file} (--{flag} FILE)."
VERDICTS = {  # for a single arm, for several arms, for all arms
    "better": ("is better", "are better", "all arms are better"),
    "worse": ("is worse", "are worse", "all arms are worse"),
    "": (*["cannot be told from it"] * 2, "no arm can be told from it"),
}
PAIRED_TEST = (
    "Paired by seed: a t-test (ttest_rel) of the differences between two runs of the same seed, "
    "over {} seeds."
)
WELCH_TEST = (
    "Welch: too few seeds are common to pair by, so it is a t-test of unequal variances "
    "(ttest_ind)."
)
HOLM = (
    "p is two-sided; p (Holm) is corrected for {} comparisons. The intervals are of 95 % each, "
    "uncorrected."
)
TO_TARGET = (
    "Medians over the runs that are done, of the first log with {} {} {}, {}; a run that never "
    "reached it counts as later than all. Time is of training: evaluation, checkpoints and waiting "
    "are left out."
)
UNPAIRED = (
    "Not every arm has the same seeds done, so compare arms by the differences, which are of the "
    "same seeds."
)


def tables(report: Report, most: int | None = None) -> list[Table]:
    """All non-empty tables. most: number of arms, or runs, in each table."""
    by_arm = [make(report, most) for make in (results, _differences, times_to_target, _configs)]
    left_out = _arms_left_out(report, most)
    of_arms = [replace(table, notes=[*left_out, *table.notes]) for table in by_arm]
    of_items = items.table(report, most)
    every = [*answers.tables(report, most), *of_arms, of_items, unfinished(report, most)]
    return [table for table in every if table.lines]


def headline(report: Report) -> list[str]:
    """Sentences: the answers of a grid, the number of runs, the best arm, and the arms differing
    from the baseline.
    """
    states = Counter(sorted((run.state for run in report.runs), key=lambda state: state != DONE))
    counts = ", ".join(f"{n:,} {state}" for state, n in states.items())
    if without := len(report.without_value):
        counts += f"; {without:,} of those done without a value of {report.metric}"
    runs, arms = counted(len(report.runs), "run"), counted(len(report.rows), "arm")
    best, several = report.ranked[0], sum(row.summary.n > 0 for row in report.rows) > 1
    value = f"{report.metric}: {report.decimals.number(best.summary.mean)}, {best.name}"
    lines = [f"{runs} in {arms}: {counts}.", f"{'Best' if several else 'Mean'} {value}."]
    tested = [row for row in report.others if row.p_holm is not None]
    if tested and not report.factors:
        level = "at 5 % after Holm" if len(tested) > 1 else "at 5 %"
        verdicts = "; ".join(filter(None, (_verdicts(tested, report.higher), _untested(report))))
        lines.append(f"Against {report.baseline.name}, {level}: {verdicts}.")
    return [*decision.sentences(report), *answers.sentences(report), *lines, *_lengths(report)]


def results(report: Report, most: int | None = None) -> Table:
    write, lines = report.decimals, []
    seeds = any(row.summary.n > 1 for row in report.rows)
    lengths = [name for name in ("steps", "tokens") if len(_ended(report.rows, name)) > 1]
    for row in report.shown(most):
        stats = row.summary
        cells = [_span(_ended([row], name), name) for name in lengths] + [write.number(stats.mean)]
        if seeds:
            cells += [write.number(stats.deviation), write.interval(stats.low, stats.high)]
        lines.append((arm_name(row, report), f"{stats.n} of {len(row.arm.runs)}", *cells))
    return Table(
        name="arms",
        title=f"{report.metric} at the end",
        heads=(
            "arm",
            "done",
            *lengths,
            *(("mean", "deviation", "95 % interval") if seeds else ("value",)),
        ),
        lines=lines,
        notes=_notes_of_results(report, seeds),
        align="<>>>>>>",
    )


def _differences(report: Report, most: int | None = None) -> Table:
    write, lines, notes = report.decimals, [], []
    compared = [row for row in report.shown(most) if row.difference.method]
    tests = [_test(row.difference) for row in compared]
    several = len(set(tests)) > 1
    for row, test in zip(compared, tests, strict=True):
        diff = row.difference
        span = write.interval(diff.low, diff.high, sign="+")
        cells = (row.name, write.signed(diff.mean), span, p_value(diff.p), p_value(row.p_holm))
        lines.append((*cells, test) if several else cells)
    methods = {row.difference.method for row in compared}
    if PAIRED in methods:
        pairs = [row.difference.n or 0 for row in compared if row.difference.method == PAIRED]
        seeds = " to ".join(map(str, sorted({min(pairs), max(pairs)})))
        notes.append(PAIRED_TEST.format(seeds))
    if WELCH in methods:
        notes.append(WELCH_TEST)
    if methods == {NONE} and not several:
        notes.append(f"Without interval and p-value: {tests[0]}.")
    tested = sum(row.difference.p is not None for row in report.rows)
    if tested:
        single = "p is two-sided; a single comparison needs no correction."
        notes.append(HOLM.format(tested) if tested > 1 else single)
    heads = ("arm", "difference", "95 % interval", "p", "p (Holm)", "test")
    return Table(
        name="differences",
        title=f"difference to {report.baseline.name}",
        heads=heads if several else heads[:-1],
        lines=lines,
        notes=notes,
        align="<>>>><",
    )


def times_to_target(report: Report, most: int | None = None) -> Table:
    target, lines = report.decimals.number(report.target), []
    for row in report.shown(most):
        reached = row.to_target
        if reached.n is not None:
            cells = (compact(reached.step), compact(reached.tokens), duration(reached.seconds))
            lines.append((arm_name(row, report), f"{reached.n} of {reached.of}", *cells))
    bound = "at least" if report.higher else "at most"
    note = TO_TARGET.format(report.metric, bound, target, report.target_from)
    return Table(
        name="reach",
        title=f"how soon {report.metric} reached {target}",
        heads=("arm", "reached", "steps", "tokens", "time"),
        lines=lines,
        notes=[note],
        align="<>>>>",
    )


def _configs(report: Report, most: int | None = None) -> Table:
    base, lines = report.baseline.arm.config, []
    for row in report.shown(most) if base and report.differing else []:
        if row is not report.baseline:
            config = row.arm.config
            keys = [key for key in report.differing if config.get(key) != base.get(key)]
            changes = [
                f"{key}: {base.get(key, 'none')} → {config.get(key, 'none')}" for key in keys
            ]
            lines.append(
                (row.name, ("; ".join(changes) or "nothing") if config else "not prepared yet")
            )
    best = "" if report.compared else ", the best,"
    return Table(
        name="configs",
        title="config",
        heads=("arm", f"differs from {report.baseline.name}{best} in"),
        lines=lines,
        align="<<",
    )


def unfinished(report: Report, most: int | None = None) -> Table:
    without, notes = set(report.without_value), []
    uncounted = [run for run in report.runs if run.state != DONE or run in without]
    if most is not None and len(uncounted) > most:
        see_all = SEE_ALL.format(n=len(uncounted), file="runs.csv", flag="runs-csv")
        notes.append(f"{most:,} of {len(uncounted):,} runs, those that failed first; {see_all}")
        uncounted = sorted(uncounted, key=lambda run: run.state != FAILED)[:most]
    lines = []
    for run in uncounted:
        why = run.why
        if run in without:
            why = f"it has no value of {report.metric}"
        elif not why and (run.log.last_step or run.state == RUNNING):
            end = f" of {run.max_steps:,}" if run.max_steps else ""
            why = f"step {run.log.last_step:,}{end}"
        lines.append((*_of_run(run, report), why))
    if reason := report.source.no_answer:
        notes.append(f"{NO_ANSWER}: {reason}")
    heads = ("run", "arm", "seed", "state", "")
    return Table(
        name="unfinished", title="not counted", heads=heads, lines=lines, notes=notes, align="<<<<<"
    )


def runs_table(report: Report, most: int | None = None) -> Table:
    """Every run with its final value or its progress. most: number of runs."""
    write, notes = report.decimals, []
    lines = [
        (
            *_of_run(run, report),
            f"{run.log.last_step:,}",
            write.number(run.final.get(report.metric)),
        )
        for run in report.runs[:most]
    ]
    if len(lines) < len(report.runs):
        notes = [f"The first {len(lines):,} of {len(report.runs):,} runs; runs.csv has all."]
    heads = ("run", "arm", "seed", "state", "step", report.metric)
    return Table(name="runs", title="", heads=heads, lines=lines, notes=notes, align="<<><>>")


def verdict(row: Row, higher: bool) -> str:
    """'better' or 'worse' than the baseline at 5 % after Holm's correction, else ''."""
    if row.p_holm is None or row.p_holm >= ALPHA:
        return ""
    return "better" if ((row.difference.mean or 0.0) > 0) == higher else "worse"


def _verdicts(tested: Sequence[Row], higher: bool) -> str:
    words = []
    for kind, (singular, plural, of_all) in VERDICTS.items():
        names = [row.name for row in tested if verdict(row, higher) == kind]
        if len(names) == len(tested) > 1:
            return of_all
        if names:
            who = enumerated(names) if len(names) < 4 else f"{len(names)} arms"
            words.append(f"{who} {singular if len(names) == 1 else plural}")
    return "; ".join(words)


def _untested(report: Report) -> str:
    """The arms without a test against the baseline, with the reason."""
    reasons: dict[str, list[str]] = {}
    for row in report.others:
        if row.p_holm is None:
            why = row.difference.why or "no run with a value"
            reasons.setdefault(why, []).append(row.name)
    return "; ".join(
        f"{enumerated(names) if len(names) < 4 else f'{len(names)} arms'} "
        f"{'is' if len(names) == 1 else 'are'} not tested ({why})"
        for why, names in reasons.items()
    )


def _lengths(report: Report) -> list[str]:
    """A sentence about runs of different length in one ranking, if any."""
    by_unit = {name: _ended(report.rows, name) for name in ("steps", "tokens")}
    if all(len(lengths) < 2 for lengths in by_unit.values()):
        return []
    reasons = (run.ended[1] for run in report.runs if run.ended)
    early = Counter(reason for reason in reasons if reason != "end")
    why = ", ".join(f"{n} ended by {reason}" for reason, n in early.items())
    length = ", ".join(
        f"{_span(lengths, name)} {name}" for name, lengths in by_unit.items() if lengths
    )
    length += f" ({why})" if why else ""
    return [f"The runs did not all train as long, and stand in one ranking: {length}."]


def _ended(rows: Sequence[Row], name: str) -> set[int]:
    """The final steps, or tokens, of the arms' counted runs."""
    runs = [run for row in rows for run in row.arm.done if run.ended]
    if name == "steps":
        return {run.ended[0] for run in runs if run.ended}
    return {run.log.tokens for run in runs if run.log.tokens is not None}


def _span(lengths: set[int], name: str) -> str:
    write = compact if name == "tokens" else "{:,}".format
    ends = dict.fromkeys(write(n) for n in (min(lengths), max(lengths))) if lengths else [NOTHING]
    return " to ".join(ends)


def _notes_of_results(report: Report, seeds: bool) -> list[str]:
    better = f"{'Higher' if report.higher else 'Lower'} is better."
    interval = " The interval is Student's t over the runs that are done." if seeds else ""
    notes = [better + interval]
    paired = any(row.difference.method == PAIRED for row in report.rows)
    if paired and len({frozenset(row.values) for row in report.rows if row.values}) > 1:
        notes.append(UNPAIRED)
    if seeds and any(row.summary.n == 1 for row in report.rows):
        notes.append("One run gives no deviation and no interval.")
    if report.others and report.compared and not report.baseline.summary.n:
        name = report.baseline.name
        notes.append(
            f"The baseline {name} has no run that is done, so nothing is compared with it."
        )
    return notes


def _arms_left_out(report: Report, most: int | None) -> list[str]:
    n = len(report.others if report.compared else report.rows)
    if most is None or n <= most:
        return []
    who = f"The best {most:,} of {n:,} arms"
    if report.compared:
        who = f"The baseline and the best {most:,} of {n:,} other arms"
    return [f"{who}; {SEE_ALL.format(n=n, file='arms.csv', flag='csv')}"]


def _test(found: Difference) -> str:
    return f"{found.n} pairs" if found.method == PAIRED else found.why or WELCH


def arm_name(row: Row, report: Report) -> str:
    is_baseline = row is report.baseline and report.others and report.compared
    return f"{row.name} (baseline)" if is_baseline else row.name


def _of_run(run: Run, report: Report) -> tuple[str, ...]:
    seed = NOTHING if run.seed is None else str(run.seed)
    return report.label(run), report.arm_of[run], seed, run.state
