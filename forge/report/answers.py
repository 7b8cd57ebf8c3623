"""The answers of a grid in words and tables: what each factor does, and whether that depends on the
other factors.
"""

from __future__ import annotations

from dataclasses import replace

from forge.config.numbers import NOTHING, Decimals, counted, p_value
from forge.report.comparison import Report
from forge.report.factors import Effect, Factor
from forge.report.statistics import Difference
from forge.report.table import Table, enumerated

ALPHA = 0.05
LISTED = 4  # values of a factor in one sentence
AVERAGED = (
    "Runs of equal seed and equal other values are compared, the differences averaged within each "
    "seed, and the interval is Student's t over the seeds: runs of one seed share initial weights "
    "and data, and are no independent samples."
)
DEPENDS = "Dependence on {}: an F-test of the differences, level by seed, p {}."
OWN_BEST = (
    "At its own best: each value with the other values that suit it, chosen by the same runs, "
    "which flatters both sides."
)
BEST_CHOSEN = "The best is chosen by the same runs; --baseline {}={} compares with another."


def sentences(report: Report) -> list[str]:
    """Two sentences a factor, in the order of typing: its effect; dependence and own best."""
    write = report.decimals
    return [
        line
        for factor in report.factors
        for line in (_effect(factor, report, write), _details(factor, report, write))
        if line
    ]


def tables(report: Report, most: int | None = None) -> list[Table]:
    """A table a factor: every value against the reference, over all, by level, at its own best."""
    made = [_table(factor, report, most) for factor in report.factors if factor.effects]
    return [replace(table, notes=table.notes[2 * (i > 0) :]) for i, table in enumerate(made)]


def _effect(factor: Factor, report: Report, write: Decimals) -> str:
    if len(factor.effects) != 1:
        return _effects(factor, report, write) if factor.effects else ""
    effect = next(iter(factor.effects))
    diff = effect.difference
    if diff.mean is None:
        return f"{factor.word}: {effect.value} and {factor.reference} have no seed in common."
    is_better = (diff.mean > 0) == report.higher
    winner, loser = (effect.value, factor.reference)[:: 1 if is_better else -1]
    over = f"over {_over(factor, effect)}"
    if effect.p_holm is not None and effect.p_holm >= ALPHA:
        values = _written(diff, write)
        return (
            f"{factor.word}: {effect.value} cannot be told from {factor.reference} at 5 %: "
            f"{report.metric} {values}, {over}."
        )
    size = write.number(abs(diff.mean))
    ends = sorted(abs(end) for end in (diff.low, diff.high) if end is not None)
    sure = f" (95 % interval {write.interval(*ends)}, p {p_value(diff.p)})" if ends else ""
    untested = "" if ends else f"; untested ({diff.why})"
    return f"{factor.word}: {winner} is better than {loser} by {size}{sure}, {over}{untested}."


def _effects(factor: Factor, report: Report, write: Decimals) -> str:
    words = []
    for effect in factor.effects:
        verdict = _verdict(effect, report.higher)
        text = {"": "not told apart"}.get(verdict, verdict)
        if effect.difference.p is None:
            text = effect.difference.why or "no seed in common"
        words.append(f"{effect.value} {text} ({_written(effect.difference, write)})")
    left = len(words) - LISTED
    listed = "; ".join(words[:LISTED]) + (f"; and {counted(left, 'value')} more" * (left > 0))
    head = f"{factor.reference} is the best" if factor.chosen else f"against {factor.reference}"
    after = " after Holm" if any(effect.p_holm is not None for effect in factor.effects) else ""
    over = _over(factor, max(factor.effects, key=lambda effect: effect.cells))
    return f"{factor.word}: {head}, at 5 %{after}: {listed}; over {over}."


def _details(factor: Factor, report: Report, write: Decimals) -> str:
    parts = []
    tested = [
        (test.p, effect, test.word)
        for effect in factor.effects
        for test in effect.interactions
        if test.p is not None
    ]
    for word in dict.fromkeys(word for *_, word in tested):
        p, effect, _ = min((t for t in tested if t[2] == word), key=lambda t: t[0])
        several = sum(t[2] == word for t in tested)
        p = min(p * several, 1.0)
        size = f"p {p_value(p)}" + f" after Bonferroni for {several} values" * (several > 1)
        if p >= ALPHA:
            parts.append(f"no sign that this depends on {word} ({size})")
            continue
        by_level = ", ".join(
            f"{write.signed(at.difference.mean)} at {at.level}"
            for at in effect.by_level
            if at.word == word
        )
        what = f"{effect.value} - {factor.reference}"
        parts.append(f"this depends on {word} ({size}): {what} is {by_level}")
    best = [
        f"{value} {write.number(cell.summary.mean)} ({_named(cell.others)})"
        for value, cell in list(factor.best.items())[: LISTED + 1]
    ]
    own = f"each at its own best: {', '.join(best)}" + ", ..." * (len(factor.best) > LISTED + 1)
    if len(factor.effects) == 1:
        diff = factor.best[factor.effects[0].value].difference
        own += f", difference {_written(diff, write)}"
    text = "; ".join([*parts, own])
    return f"   {text[0].upper()}{text[1:]}."


def _table(factor: Factor, report: Report, most: int | None) -> Table:
    write, lines, notes = report.decimals, [], []
    for effect in factor.effects:
        over = f"all {effect.cells}" if effect.cells else "none in common"
        rows = [(over, effect.difference)]
        rows += [(f"{at.word}={at.level}", at.difference) for at in effect.by_level]
        best, base = factor.best[effect.value], factor.best[factor.reference]
        places = dict.fromkeys((_named(best.others), _named(base.others)))
        rows.append((f"own best: {' vs '.join(places)}", best.difference))
        for place, diff in rows:
            span = write.interval(diff.low, diff.high, sign="+")
            pairs = f"{diff.n} seeds" if diff.n and diff.p is not None else diff.why or NOTHING
            cells = (write.signed(diff.mean), span, p_value(diff.p), pairs)
            lines.append((effect.value, place, *cells))
        for test in effect.interactions:
            if test.p is not None:
                what = DEPENDS.format(test.word, p_value(test.p))
                notes.append(what if len(factor.effects) == 1 else f"Of {effect.value}: {what}")
    others = enumerated(factor.others)
    best = " (the best)" if factor.chosen else ""
    if factor.chosen and factor.effects:
        notes.append(BEST_CHOSEN.format(factor.word, factor.effects[0].value))
    shown = lines if most is None else lines[: 4 * most]
    return Table(
        name=f"factor-{factor.word.replace('.', '-')}",
        title=f"effect of {factor.word} on {report.metric}, against {factor.reference}{best}",
        heads=(factor.word, f"at {others}", "difference", "95 % interval", "p", "seeds"),
        lines=shown,
        notes=[AVERAGED, OWN_BEST, *notes],
        align="<<>>><",
    )


def _verdict(effect: Effect, higher: bool) -> str:
    if effect.p_holm is None or effect.p_holm >= ALPHA:
        return ""
    return "better" if ((effect.difference.mean or 0.0) > 0) == higher else "worse"


def _written(diff: Difference, write: Decimals) -> str:
    if diff.low is None or diff.high is None:
        return write.signed(diff.mean)
    return f"{write.signed(diff.mean)}, {write.interval(diff.low, diff.high, sign='+')}"


def _over(factor: Factor, effect: Effect) -> str:
    cells = f"{effect.cells:,} {_noun(factor, effect.cells)}"
    return f"{cells} x {counted(effect.seeds, 'seed')}"


def _noun(factor: Factor, n: int) -> str:
    several = "s" * (n != 1)
    if len(factor.others) == 1:
        return f"value{several} of {factor.others[0]}"
    return f"combination{several} of {enumerated(factor.others)}"


def _named(others: dict[str, str]) -> str:
    return " ".join(f"{word}={value}" for word, value in others.items())
