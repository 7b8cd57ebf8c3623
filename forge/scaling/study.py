"""A ladder with its law, the intervals of all that follows from it, and the largest run predicted
from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from forge.config.numbers import counted
from forge.config.problems import COMMAND_LINE, refusal
from forge.scaling.reading import COMPUTES, COUNTS, Ladder, Rung
from forge.scaling_laws import frontier, law
from forge.scaling_laws.bootstrap import REPEATS, Bootstrap, Bounds
from forge.scaling_laws.law import Flops
from forge.scaling_laws.projection import Powers, fit

SIZE_AND_TOKENS, COMPUTE = "size_and_tokens", "compute"
LAWS = {
    SIZE_AND_TOKENS: "loss = E + A / N^alpha + B / D^beta",
    COMPUTE: "loss = E + A / C^gamma",
}
CONSTANTS = {SIZE_AND_TOKENS: 5, COMPUTE: 3}
LEAST_SIZES = 3
ON_A_LINE = 0.999  # correlation of log size and log tokens of a ladder that cannot tell them apart
LARGEST, BUDGET = "largest run", "largest budget"
AS_LARGE = 1.001  # compute of seeds of one run


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is fitted. count: of parameters. compute: of FLOPs. law: None = by the ladder."""

    count: str = COUNTS[0]
    compute: str = COMPUTES[0]
    law: str | None = None
    repeats: int = REPEATS
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """Runs left out and predicted from the others. rest: number of the others. predicted: of each,
    with the interval for one new run. factor: compute beyond the largest of the others.
    """

    name: str
    rungs: Sequence[Rung]
    rest: int
    predicted: Sequence[Bounds]
    factor: float

    @property
    def inside(self) -> int:
        """Number of the runs inside of their intervals."""
        pairs = zip(self.rungs, self.predicted, strict=True)
        return sum(predicted.holds(rung.loss) for rung, predicted in pairs)

    @property
    def errors(self) -> np.ndarray:
        """Predicted minus measured."""
        pairs = zip(self.rungs, self.predicted, strict=True)
        return np.array([predicted.value - rung.loss for rung, predicted in pairs])


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best use of a budget. factor: beyond the largest run; above 1 it is an extrapolation.

    size, tokens: None where the ladder cannot tell size and tokens apart.
    """

    budget: float
    factor: float
    loss: Bounds
    size: Bounds | None = None
    tokens: Bounds | None = None

    @property
    def is_extrapolation(self) -> bool:
        return self.factor > 1.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """A fitted ladder. flops: of a token over the parameters, for the best use of a budget."""

    ladder: Ladder
    choice: Choice
    kind: str
    powers: Powers
    bootstrap: Bootstrap
    flops: Flops
    held: list[Held] = field(default_factory=list)
    why_not_held: str = ""
    best: list[Best] = field(default_factory=list)

    @property
    def sizes(self) -> np.ndarray:
        return self.ladder.sizes(self.choice.count)

    @property
    def compute(self) -> np.ndarray:
        return self.ladder.compute(self.choice.count, self.choice.compute)

    @property
    def is_of_size(self) -> bool:
        return self.kind == SIZE_AND_TOKENS

    @property
    def fitted(self) -> np.ndarray:
        return self.powers.residuals[0] + self.ladder.losses

    @cached_property
    def constants(self) -> dict[str, Bounds]:
        """The constants of the law, and the exponents a and b of its best sizes and tokens."""
        interval = self.bootstrap.interval
        names = ("alpha", "beta") if self.is_of_size else ("gamma",)
        floor = interval(lambda p: p.coefficients[:, 0])
        found = {"E": floor if floor.low is None else replace(floor, low=max(floor.low, 0.0))}
        for term, (factor, exponent) in enumerate(zip("AB", names, strict=False)):
            found[factor] = interval(lambda p, k=term: p.coefficients[:, 1 + k], positive=True)
            found[exponent] = interval(lambda p, k=term: p.exponents[:, k], positive=True)
        if self.is_of_size:
            flops = self.flops
            found["a"] = interval(lambda powers: law.size_exponent(powers, flops))
            found["b"] = interval(lambda p: 1 - flops.power * law.size_exponent(p, flops))
        return found


def study(ladder: Ladder, choice: Choice, budgets: Sequence[float] = ()) -> Study:
    """Fit a ladder. Raises ConfigError where it has too few runs or sizes.

    budgets: FLOPs to be used best; none = ten times the compute of the largest run.
    """
    kind = choice.law or _law_of(ladder, choice)
    _check(ladder, choice, kind)
    powers = _fit(ladder, choice, kind)
    bootstrap = Bootstrap(powers, choice.repeats, choice.seed)
    flops = Flops()
    sizes = ladder.sizes(choice.count)
    if choice.compute != COMPUTES[0]:
        per_token = np.array([float(rung.flops) for rung in ladder.rungs])
        flops = law.fitted_flops(sizes, per_token)
    held, why = _leave_out(ladder, choice, kind)
    made = Study(
        ladder=ladder,
        choice=choice,
        kind=kind,
        powers=powers,
        bootstrap=bootstrap,
        flops=flops,
        held=held,
        why_not_held=why,
    )
    budgets = budgets or [_rounded(10 * float(made.compute.max()))]
    return replace(made, best=[_best(made, budget) for budget in budgets])


def variants(made: Study) -> list[tuple[str, str, Powers, float, float]]:
    """Each count of parameters with each of compute: the fit, and the exponents a and b."""
    rows = []
    for count in COUNTS:
        for compute in COMPUTES:
            choice = replace(made.choice, count=count, compute=compute)
            powers = _fit(made.ladder, choice, made.kind)
            sizes = made.ladder.sizes(count)
            flops = Flops()
            if compute != COMPUTES[0]:
                per_token = np.array([float(rung.flops) for rung in made.ladder.rungs])
                flops = law.fitted_flops(sizes, per_token)
            a = float(law.size_exponent(powers, flops)[0]) if made.is_of_size else float("nan")
            rows.append((count, compute, powers, a, 1 - flops.power * a))
    return rows


def _law_of(ladder: Ladder, choice: Choice) -> str:
    """The law that a ladder can tell: over compute where size and tokens grow along one line."""
    sizes = ladder.sizes(choice.count)
    if len(sizes) > 2 and np.ptp(sizes) and np.ptp(ladder.tokens):
        correlation = np.corrcoef(np.log(sizes), np.log(ladder.tokens))[0, 1]
        return COMPUTE if correlation > ON_A_LINE else SIZE_AND_TOKENS
    return SIZE_AND_TOKENS


def _check(ladder: Ladder, choice: Choice, kind: str) -> None:
    """Refuse a ladder with too few sizes, or fewer runs than a fit takes. Raises ConfigError."""
    sizes, runs = ladder.sizes(choice.count), len(ladder.rungs)
    where = str(ladder.source.path or ladder.source.name)
    without = f" {len(ladder.left_out)} are left out." if ladder.left_out else ""
    different = sorted(set(sizes))
    hint = "python -m forge.train -m experiment=isoflop_demo is a ladder of seven sizes"
    if len(different) < LEAST_SIZES:
        listed = " and ".join(f"{size:,.0f}" for size in different) or "none"
        message = f"its {runs} finished runs have {len(different)} size"
        message += f"{'s' * (len(different) != 1)} ({listed} parameters), and a law over size takes"
        message += f" {LEAST_SIZES} or more.{without}"
        raise refusal(where, message, hint, COMMAND_LINE)
    if runs <= CONSTANTS[kind]:
        message = f"it has {runs} finished runs, and {LAWS[kind]} takes {CONSTANTS[kind] + 1} or "
        message += f"more: one beyond its {CONSTANTS[kind]} constants.{without}"
        if kind == SIZE_AND_TOKENS and runs > CONSTANTS[COMPUTE]:
            hint = f"--law {COMPUTE} takes {CONSTANTS[COMPUTE] + 1}; {hint}"
        raise refusal(where, message, hint, COMMAND_LINE)
    if kind == SIZE_AND_TOKENS and len(set(ladder.tokens)) < LEAST_SIZES:
        message = f"its runs were trained on {len(set(ladder.tokens))} different numbers of tokens,"
        message += f" and {LAWS[kind]} takes {LEAST_SIZES} or more."
        raise refusal(where, message, f"--law {COMPUTE}, or runs of other lengths", COMMAND_LINE)


def _fit(ladder: Ladder, choice: Choice, kind: str) -> Powers:
    return fit(_variables(ladder, choice, kind), ladder.losses)


def _variables(ladder: Ladder, choice: Choice, kind: str) -> np.ndarray:
    if kind == COMPUTE:
        return ladder.compute(choice.count, choice.compute)[None]
    return np.stack([ladder.sizes(choice.count), ladder.tokens])


def _leave_out(ladder: Ladder, choice: Choice, kind: str) -> tuple[list[Held], str]:
    """The largest run, with its seeds, predicted from the others, and all runs of the largest
    budget likewise; or why the largest cannot be.
    """
    compute = ladder.compute(choice.count, choice.compute)
    near = np.log(compute.max()) - np.log(compute) <= frontier.SAME
    largest = int(np.where(near, ladder.sizes(choice.count), 0.0).argmax())
    chosen = ladder.rungs[largest]
    seeds = np.array(
        [
            rung.parameters == chosen.parameters
            and max(rung.tokens, chosen.tokens) <= AS_LARGE * min(rung.tokens, chosen.tokens)
            for rung in ladder.rungs
        ]
    )
    first = _predicted(ladder, choice, kind, seeds, LARGEST)
    if first is None:
        sizes = counted(len(set(ladder.sizes(choice.count)[~seeds])), "size")
        runs = counted(int((~seeds).sum()), "run")
        return [], f"without it {runs} of {sizes} are left, too few for the law"
    budget = None if (near == seeds).all() else _predicted(ladder, choice, kind, near, BUDGET)
    return [first, budget] if budget else [first], ""


def _predicted(
    ladder: Ladder, choice: Choice, kind: str, chosen: np.ndarray, name: str
) -> Held | None:
    rungs = [rung for rung, is_held in zip(ladder.rungs, chosen, strict=True) if is_held]
    kept = [rung for rung, is_held in zip(ladder.rungs, chosen, strict=True) if not is_held]
    others = replace(ladder, rungs=kept)
    if len(kept) <= CONSTANTS[kind] or len(set(others.sizes(choice.count))) < LEAST_SIZES:
        return None
    powers = _fit(others, choice, kind)
    places = np.log(_variables(replace(ladder, rungs=rungs), choice, kind))
    places -= powers.centre[:, None]
    bootstrap = Bootstrap(powers, choice.repeats, choice.seed)
    predicted = [bootstrap.prediction(place[:, None]) for place in places.T]
    factor = max(rung.compute(choice.count, choice.compute) for rung in rungs)
    factor /= float(others.compute(choice.count, choice.compute).max())
    return Held(name=name, rungs=rungs, rest=len(kept), predicted=predicted, factor=factor)


def _best(made: Study, budget: float) -> Best:
    factor = budget / float(made.compute.max())
    interval, flops = made.bootstrap.interval, made.flops
    if not made.is_of_size:
        place = np.log([[budget]]) - made.powers.centre[:, None]
        loss = interval(lambda powers: powers.at(place)[:, 0])
        return Best(budget=budget, factor=factor, loss=loss)
    return Best(
        budget=budget,
        factor=factor,
        loss=interval(lambda powers: law.least_loss(powers, budget, flops)),
        size=interval(lambda powers: law.best_size(powers, budget, flops), positive=True),
        tokens=interval(
            lambda powers: flops.tokens(budget, law.best_size(powers, budget, flops)), positive=True
        ),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.1g}")
