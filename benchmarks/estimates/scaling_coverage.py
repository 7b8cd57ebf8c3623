"""How often the 95 % intervals of a scaling law hold the constants of made-up runs.

python benchmarks/estimates/scaling_coverage.py [--experiments 400] [--write]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy

from forge.scaling_laws import law
from forge.scaling_laws.bootstrap import Bootstrap, Bounds
from forge.scaling_laws.law import Law
from forge.scaling_laws.projection import Powers, fit
from forge.statistics.interval import CONFIDENCE

EXPERIMENTS, DRAWS, SEED, NOISE = 400, 399, 1, 0.01
RESULT = Path(__file__).parents[1] / "results" / "scaling_coverage.md"
TRUTH = Law(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)  # of Chinchilla's table A3
Places = tuple[np.ndarray, np.ndarray]
QUANTITIES: dict[str, tuple[Callable[[Powers], np.ndarray], bool]] = {
    "E": (lambda powers: powers.coefficients[:, 0], False),
    "A": (lambda powers: powers.coefficients[:, 1], True),
    "alpha": (lambda powers: powers.exponents[:, 0], True),
    "B": (lambda powers: powers.coefficients[:, 2], True),
    "beta": (lambda powers: powers.exponents[:, 1], True),
    "a": (law.size_exponent, False),
    "best N at 1e22": (lambda powers: law.best_size(powers, 1e22), True),
    "loss at 1e22": (lambda powers: law.least_loss(powers, 1e22), False),
}
NEW_RUN = "a new run, 4x"


def isoflop(budgets: int) -> Places:
    """Sizes of 1/4 to 4 times the best one, at budgets of 1e18 to 1e21 FLOPs."""
    exact = fit(np.stack(_grid()), TRUTH.loss(*_grid()))
    compute = np.geomspace(1e18, 1e21, budgets)[:, None]
    best = np.array([law.best_size(exact, float(budget))[0] for budget in compute[:, 0]])
    sizes = best[:, None] * np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    return sizes.ravel(), (compute / law.FLOPS / sizes).ravel()


def _grid() -> Places:
    sizes, ratios = np.meshgrid(np.geomspace(5e7, 1e10, 6), [5.0, 10.0, 20.0, 40.0, 80.0])
    return sizes.ravel(), (sizes * ratios).ravel()


DESIGNS: dict[str, Places] = {
    "25 runs, isoFLOP": isoflop(5),
    "15 runs, isoFLOP": isoflop(3),
    "30 runs, a grid": _grid(),
}


def coverage(places: Places, experiments: int, seed: int = SEED) -> dict[str, tuple[float, float]]:
    """For each quantity the share of experiments whose interval holds the truth; and that of
    percentiles of the same draws.
    """
    sizes, tokens = places
    variables, losses = np.stack([sizes, tokens]), TRUTH.loss(sizes, tokens)
    exact = fit(variables, losses)
    held = {name: np.zeros(2) for name in (*QUANTITIES, NEW_RUN)}
    place = np.log([[2 * sizes.max()], [2 * tokens.max()]]) - exact.centre[:, None]
    for number in range(experiments):
        random = np.random.default_rng([seed, number])
        fitted = fit(variables, losses + NOISE * random.standard_normal(len(losses)))
        bootstrap = Bootstrap(fitted, DRAWS, seed=number)
        assert bootstrap.draws is not None
        for name, (quantity, positive) in QUANTITIES.items():
            truth = float(quantity(exact)[0])
            found = bootstrap.interval(quantity, positive=positive)
            held[name] += found.holds(truth), _percentiles(quantity, bootstrap).holds(truth)
        truth = float(exact.at(place)[0, 0] + NOISE * random.standard_normal())
        values = bootstrap.draws.at(place)[:, 0]
        held[NEW_RUN] += bootstrap.prediction(place).holds(truth), _ends(values).holds(truth)
    return {name: tuple(counts / experiments) for name, counts in held.items()}


def _percentiles(quantity: Callable[[Powers], np.ndarray], bootstrap: Bootstrap) -> Bounds:
    assert bootstrap.draws is not None
    with np.errstate(all="ignore"):
        return _ends(quantity(bootstrap.draws))


def _ends(values: np.ndarray) -> Bounds:
    low, high = np.nanquantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Bounds(value=float("nan"), low=float(low), high=float(high))


def table(experiments: int) -> str:
    results = {name: coverage(places, experiments) for name, places in DESIGNS.items()}
    lines = [
        f"| of | {' | '.join(DESIGNS)} | percentiles of the same draws |",
        f"| --- |{' ---: |' * (len(DESIGNS) + 1)}",
    ]
    for name in (*QUANTITIES, NEW_RUN):
        cells = [f"{shares[name][0]:.2%}" for shares in results.values()]
        cells.append(", ".join(f"{shares[name][1]:.1%}" for shares in results.values()))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=EXPERIMENTS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    made = table(options.experiments)
    print(made)
    if options.write:
        versions = f"Python {platform.python_version()}, numpy {np.__version__}"
        RESULT.write_text(
            "# Coverage of the intervals of a scaling law\n\n"
            f"The share of {options.experiments} simulated ladders whose 95 % interval holds the "
            "truth: loss = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28\n"
            f"(Chinchilla's), with normal noise of {NOISE} nats a run, {DRAWS} draws each. An "
            "exact interval has 95 % with a standard error of 1.1 %.\n"
            "The last column is of plain percentiles, by design, for comparison.\n\n"
            f"{made}\n\n`python benchmarks/estimates/scaling_coverage.py --write`, seed {SEED}; "
            f"{versions}, scipy {scipy.__version__}.\n"
        )


if __name__ == "__main__":
    main()
