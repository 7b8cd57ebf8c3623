"""The law by variable projection beside Chinchilla's approaches 1, 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from forge.scaling.study import Study
from forge.scaling_laws import frontier, huber, law
from forge.scaling_laws.bootstrap import Bounds
from forge.scaling_laws.frontier import Frontier, Parabola
from forge.scaling_laws.projection import Powers

DRAWS = 199  # of approaches 2 and 3


@dataclass(frozen=True, kw_only=True)
class Approach:
    """An answer to how the best size grows: N ~ C ** a, D ~ C ** b.

    sizes, tokens: the best for each budget of the study. why: the reason of no answer.
    """

    name: str
    a: Bounds | None = None
    b: float | None = None
    sizes: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    frontier: Frontier | None = None
    powers: Powers | None = None
    why: str = ""


def approaches(study: Study) -> list[Approach]:
    """Variable projection first, then approaches 1, 2 and 3; none for a law over compute alone."""
    if not study.is_of_size:
        return []
    first = Approach(
        name="variable projection",
        a=study.constants["a"],
        b=study.constants["b"].value,
        sizes=tuple(best.size.value for best in study.best if best.size),
        tokens=tuple(best.tokens.value for best in study.best if best.tokens),
        powers=study.powers,
    )
    return [first, _envelope(study), _isoflop(study), _huber(study)]


def parabolas(study: Study) -> list[Parabola]:
    """The parabola of each isoFLOP budget of a study."""
    return frontier.parabolas(study.compute, study.sizes, study.ladder.losses)


def _envelope(study: Study) -> Approach:
    choice, ladder = study.choice, study.ladder
    curves = [rung.curve(ladder.metric, choice.count, choice.compute) for rung in ladder.rungs]
    result = frontier.envelope(curves)
    return _of_frontier(study, "1: envelope of curves", result, None)


def _isoflop(study: Study) -> Approach:
    data = (study.compute, study.sizes, study.ladder.tokens, study.ladder.losses)
    result = frontier.isoflop(*data)
    interval = frontier.isoflop_interval(*data, repeats=DRAWS, seed=study.choice.seed)
    return _of_frontier(study, "2: isoFLOP parabolas", result, interval)


def _of_frontier(
    study: Study, name: str, result: Frontier | str, interval: Bounds | None
) -> Approach:
    if isinstance(result, str):
        return Approach(name=name, why=result)
    best = [result.best(entry.budget) for entry in study.best]
    return Approach(
        name=name,
        a=interval or Bounds(value=result.a),
        b=result.b,
        sizes=tuple(size for size, _ in best),
        tokens=tuple(tokens for _, tokens in best),
        frontier=result,
    )


def _huber(study: Study) -> Approach:
    name, flops = "3: Huber of log loss", study.flops
    losses = study.ladder.losses
    powers = huber.fit_huber(np.stack([study.sizes, study.ladder.tokens]), losses)
    budgets = [entry.budget for entry in study.best]
    sizes = [float(law.best_size(powers, budget, flops)[0]) for budget in budgets]
    tokens = [float(flops.tokens(c, np.array(n))) for c, n in zip(budgets, sizes, strict=True)]
    exponent = partial(law.size_exponent, flops=flops)
    interval = huber.huber_interval(powers, losses, exponent, repeats=DRAWS, seed=study.choice.seed)
    return Approach(
        name=name,
        a=interval,
        b=1 - flops.power * interval.value,
        sizes=tuple(sizes),
        tokens=tuple(tokens),
        powers=powers,
    )
