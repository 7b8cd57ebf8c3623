"""A study as sentences and tables, the same on a terminal, on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forge.config.numbers import NOTHING, compact, counted, percent
from forge.report.table import Table
from forge.scaling.approaches import Approach, parabolas
from forge.scaling.reading import COUNTS, Ladder
from forge.scaling.study import LAWS, Best, Held, Study, variants
from forge.scaling_laws.bootstrap import LEAST_FREEDOM, Bounds

COUNT_WORDS = {
    "all": "all parameters",
    "without_embeddings": "parameters without embeddings and head",
}
COMPUTE_WORDS = {"6nd": "6 N D", "counted": "counted FLOPs"}
METHOD = (
    "Least squares of the loss by variable projection; an interval is of 95 %, by a bootstrap-t of "
    "{repeats:,} draws over the residuals of runs, which takes their noise to be equal in {unit}."
)
FEW = (
    "Least squares of the loss by variable projection. Only {freedom} runs are left beyond the "
    "constants, too few for a bootstrap: an interval is Student's t of 95 %, by linearisation."
)
AT_ZERO = (
    "E is at its bound, 0: these runs do not show a floor, and the law is a guess beyond them."
)
UNBOUNDED = "– in place of an interval: more than a fifth of the draws lost the term."
EXTRAPOLATED = (
    "An extrapolation: {factor:.3g} times the compute of the largest run. The interval is of the "
    "law's constants, not of the law itself, which nothing tests so far out."
)
HELD = (
    "Left out of another fit, which predicts it. The interval is for one new run: that of the law "
    "and the noise of a run."
)
DIFFERS = "The runs differ in {} too; the law takes that for an effect of size and tokens."


def headline(study: Study) -> list[str]:
    """Sentences: the runs, the law, the largest run predicted, and the best use of each budget."""
    ladder = study.ladder
    sizes = counted(len(set(study.sizes)), "size")
    left_out = f"; {len(ladder.left_out):,} left out" if ladder.left_out else ""
    lines = [f"{counted(len(ladder.rungs), 'run')} of {sizes}{left_out}.", _law_text(study)]
    lines += [held_text(held, ladder.metric) for held in study.held] or [_no_held(study)]
    lines += [best_text(best, ladder.metric) for best in study.best]
    if ladder.differs:
        lines.append(DIFFERS.format(", ".join(ladder.differs)))
    return lines


def held_text(held: Held, metric: str) -> str:
    """Runs left out and predicted from the others, as a sentence with the verdict."""
    number, largest = len(held.rungs), float(np.abs(held.errors).max())
    beyond = (
        f"{held.factor:.3g} times the compute of" if held.factor > 1.05 else "with the compute of"
    )
    head = f"The {held.name} left out, {beyond} the largest of the other {held.rest:,}: "
    if number > 1:
        return (
            f"{head}{held.inside} of {number} runs are inside of their intervals, {metric} off by "
            f"{largest:.4f} at most."
        )
    predicted, loss = held.predicted[0], held.rungs[0].loss
    verdict = "inside" if held.inside else "outside"
    error = f"{held.errors[0]:+.4f} off ({percent(largest / loss)})"
    return (
        f"{head}{metric} {_span(predicted)} predicted and {loss:.4f} measured, {verdict} of the "
        f"interval; {error}."
    )


def best_text(best: Best, metric: str) -> str:
    """The best use of a budget, as a sentence."""
    beyond = f" (extrapolated {best.factor:.3g} times)" if best.is_extrapolation else ""
    if best.size is None or best.tokens is None:
        return f"{best.budget:.3g} FLOPs{beyond}: {metric} {_span(best.loss)}."
    return (
        f"Best for {best.budget:.3g} FLOPs{beyond}: {compact(best.size.value)} parameters on "
        f"{compact(best.tokens.value)} tokens, {metric} {_span(best.loss)}."
    )


def tables(study: Study, compared: Sequence[Approach]) -> list[Table]:
    """All non-empty tables."""
    made = [_constants(study), _best(study), _held(study), _approaches(study, compared)]
    made += [_variants(study), _runs(study), left_out(study.ladder)]
    return [table for table in made if table.lines]


def left_out(ladder: Ladder) -> Table:
    lines = [(entry.name, entry.why) for entry in ladder.left_out]
    return Table(name="left-out", title="left out", heads=("run", "why"), lines=lines, align="<<")


def _constants(study: Study) -> Table:
    lines = [
        (name, f"{bounds.value:.5g}", _ends(bounds)) for name, bounds in study.constants.items()
    ]
    notes = [f"{LAWS[study.kind]}; {_meaning(study)}.", _method(study)]
    if study.constants["E"].value == 0:
        notes.append(AT_ZERO)
    if any(bounds.low is None for bounds in study.constants.values()):
        notes.append(UNBOUNDED)
    return Table(
        name="constants",
        title="constants",
        heads=("constant", "value", "95 % interval"),
        lines=lines,
        notes=notes,
        align="<>>",
    )


def _best(study: Study) -> Table:
    lines = []
    for best in study.best:
        cells = [f"{best.loss.value:.4f}", _ends(best.loss)]
        if best.size and best.tokens:
            ratio = best.tokens.value / best.size.value
            both = (best.size, best.tokens)
            cells = [
                *(cell for b in both for cell in (compact(b.value), _ends(b, compact))),
                f"{ratio:.3g}",
                *cells,
            ]
        beyond = f"extrapolated {best.factor:.3g}x" if best.is_extrapolation else "within the runs"
        lines.append((f"{best.budget:.3g}", beyond, *cells))
    heads = ["budget", "", study.ladder.metric, "95 % interval"]
    if study.is_of_size:
        heads[2:2] = ["parameters", "95 % interval", "tokens", "95 % interval", "tokens/param."]
    factors = [best.factor for best in study.best if best.is_extrapolation]
    return Table(
        name="best",
        title="best use of a budget" if study.is_of_size else "loss at a budget",
        heads=heads,
        lines=lines,
        notes=[EXTRAPOLATED.format(factor=max(factors))] if factors else [],
        align="<<" + ">" * (len(heads) - 2),
    )


def _held(study: Study) -> Table:
    lines = []
    for held in study.held:
        for rung, predicted, error in zip(held.rungs, held.predicted, held.errors, strict=True):
            verdict = "inside" if predicted.holds(rung.loss) else "outside"
            spans = (f"{predicted.value:.4f}", _ends(predicted), f"{error:+.4f}", verdict)
            lines.append((rung.name, held.name, f"{rung.loss:.4f}", *spans))
    return Table(
        name="held",
        title="the largest, predicted from the others",
        heads=("run", "left out", "measured", "predicted", "95 % interval", "error", "verdict"),
        lines=lines,
        notes=[HELD],
        align="<<>>>><",
    )


def _approaches(study: Study, compared: Sequence[Approach]) -> Table:
    lines, notes = [], []
    for approach in compared:
        if approach.a is None or approach.b is None:
            lines.append((approach.name, *[NOTHING] * 5))
            notes.append(f"{approach.name}: {approach.why}.")
            continue
        size, tokens = compact(approach.sizes[-1]), compact(approach.tokens[-1])
        exponents = (f"{approach.a.value:.3f}", _ends(approach.a, lambda v: f"{v:.3f}"))
        lines.append((approach.name, *exponents, f"{approach.b:.3f}", size, tokens))
    for parabola in parabolas(study) if compared else ():
        if parabola.why:
            notes.append(f"At {parabola.budget:.3g} FLOPs {parabola.why}.")
    budget = f"{study.best[-1].budget:.3g}"
    first = "N ~ C^a and D ~ C^b. Intervals: of approach 2 and 3 percentiles of 199 draws."
    return Table(
        name="approaches",
        title="beside Chinchilla's approaches",
        heads=("approach", "a", "95 % interval", "b", f"N at {budget}", f"D at {budget}"),
        lines=lines,
        notes=[first, *dict.fromkeys(notes)],
        align="<>>>>>",
    )


def _variants(study: Study) -> Table:
    lines = []
    for count, compute, powers, a, b in variants(study):
        numbers = [*powers.coefficients[0, :1], *powers.exponents[0]]
        ends = (a, b) if study.is_of_size else ()
        cells = [f"{value:.3f}" for value in (*numbers, *ends)]
        lines.append(
            (COUNT_WORDS[count], COMPUTE_WORDS[compute], *cells, f"{powers.deviation[0]:.4f}")
        )
    exponents = ("alpha", "beta") if study.is_of_size else ("gamma",)
    ends = ("a", "b") if study.is_of_size else ()
    heads = ("N", "C", "E", *exponents, *ends, "deviation")
    return Table(
        name="variants",
        title="by what is counted",
        heads=heads,
        lines=lines,
        notes=["Deviation: of a run around the law, in the unit of the loss."],
        align="<<" + ">" * (len(heads) - 2),
    )


def _runs(study: Study) -> Table:
    lines = []
    for rung, fitted in zip(study.ladder.rungs, study.fitted, strict=True):
        compute = [rung.compute(COUNTS[0], kind) for kind in COMPUTE_WORDS]
        numbers = (compact(rung.parameters), compact(rung.matrices), compact(rung.tokens))
        losses = (f"{rung.loss:.4f}", f"{fitted:.4f}", f"{rung.loss - fitted:+.4f}")
        lines.append((rung.name, *numbers, *(f"{value:.3g}" for value in compute), *losses))
    return Table(
        name="runs",
        title="runs",
        heads=(
            *("run", "parameters", "without emb.", "tokens", "6 N D", "counted"),
            *("measured", "fitted", "residual"),
        ),
        lines=lines,
        notes=["Counted: forward and backward, with attention; 6 N D is of all parameters."],
        align="<" + ">" * 8,
    )


def _meaning(study: Study) -> str:
    compute = f"C {COMPUTE_WORDS[study.choice.compute]}"
    if not study.is_of_size:
        return f"{compute}, N {COUNT_WORDS[study.choice.count]}"
    return f"N {COUNT_WORDS[study.choice.count]}, D tokens, {compute}"


def _method(study: Study) -> str:
    freedom = study.powers.freedom
    if freedom < LEAST_FREEDOM:
        return FEW.format(freedom=freedom)
    unit = "nats" if study.ladder.metric.endswith("/loss") else "its unit"
    return METHOD.format(repeats=study.choice.repeats, unit=unit)


def _law_text(study: Study) -> str:
    values = {name: bounds.value for name, bounds in study.constants.items()}
    metric = study.ladder.metric
    deviation = f"a run is {study.powers.deviation[0]:.4f} around it"
    if not study.is_of_size:
        law = f"{metric} = {values['E']:.4g} + {values['A']:.4g} / C^{values['gamma']:.4g}"
        line = "size and tokens grow along one line, so that the law is over compute alone"
        return f"{law}; {deviation}; {line}."
    terms = (
        f"{values['A']:.4g} / N^{values['alpha']:.4g} + {values['B']:.4g} / D^{values['beta']:.4g}"
    )
    return f"{metric} = {values['E']:.4g} + {terms}; {deviation}."


def _no_held(study: Study) -> str:
    return f"The largest run cannot be predicted from the others: {study.why_not_held}."


def _span(bounds: Bounds) -> str:
    return f"{bounds.value:.4f} ({_ends(bounds)})"


def _short(value: float) -> str:
    return f"{value:.4g}"


def _ends(bounds: Bounds, write: Callable[[float], str] = _short) -> str:
    if bounds.low is None or bounds.high is None or not np.isfinite(bounds.high):
        return NOTHING
    return f"{write(bounds.low)} to {write(bounds.high)}"
