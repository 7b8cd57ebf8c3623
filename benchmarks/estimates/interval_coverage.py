"""How often the 95 % intervals hold the true value, over simulated experiments.

python benchmarks/estimates/interval_coverage.py [--experiments 400] [--write]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy

from forge.statistics.interval import Interval
from forge.statistics.items import mean, paired, wilson
from forge.statistics.two_level import two_level

EXPERIMENTS, SEED = 400, 1
RESULT = Path(__file__).parents[1] / "results" / "interval_coverage.md"
Draw = Callable[[np.random.Generator], tuple[Interval, float]]


def normal(random: np.random.Generator) -> tuple[Interval, float]:
    """The mean of 50 items of a normal distribution."""
    return mean(random.normal(3.0, 2.0, 50)), 3.0


def clustered(random: np.random.Generator) -> tuple[Interval, float]:
    """The mean of 400 items of 40 documents, whose items share most of their variance."""
    documents = np.repeat(random.normal(0.0, 1.0, 40), 10)
    values = 3.0 + documents + random.normal(0.0, 0.7, 400)
    return mean(values, clusters=list(np.repeat(np.arange(40), 10))), 3.0


def rate(random: np.random.Generator) -> tuple[Interval, float]:
    """The accuracy of 300 items, each right with probability 0.3."""
    return wilson(int(random.binomial(300, 0.3)), 300), 0.3


def paired_items(random: np.random.Generator) -> tuple[Interval, float]:
    """The difference of two accuracies over the same 500 items of unequal difficulty."""
    difficulty = random.beta(2, 2, 500)
    first = random.random(500) < 0.9 * difficulty
    second = random.random(500) < 0.9 * difficulty + 0.05
    return paired(first.astype(float), second.astype(float)), 0.05


def seeds_and_items(random: np.random.Generator) -> tuple[Interval, float]:
    """The mean of 5 seeds by 200 items, with effects of seeds, of items, and a rest."""
    table = 0.5 + random.normal(0, 0.05, (5, 1)) + random.normal(0, 0.4, (1, 200))
    return two_level(table + random.normal(0, 0.3, (5, 200))), 0.5


def seeds_above_items(random: np.random.Generator) -> tuple[Interval, float]:
    """The mean of 3 seeds by 1,000 items, where the seeds differ most."""
    table = 0.5 + random.normal(0, 0.1, (3, 1)) + random.normal(0, 0.2, (1, 1000))
    return two_level(table + random.normal(0, 0.3, (3, 1000))), 0.5


def items_by_seeds_alone(random: np.random.Generator) -> tuple[Interval, float]:
    """The same 5 seeds by 200 items, with the interval over seeds alone (too narrow)."""
    table = 0.5 + random.normal(0, 0.05, (5, 1)) + random.normal(0, 0.4, (1, 200))
    return mean((table + random.normal(0, 0.3, (5, 200))).mean(axis=1)), 0.5


KINDS: dict[str, Draw] = {
    "normal": normal,
    "clustered": clustered,
    "rate": rate,
    "paired": paired_items,
    "two-level": seeds_and_items,
    "two-level, few seeds": seeds_above_items,
}
WRONG: dict[str, Draw] = {"seeds alone, for comparison": items_by_seeds_alone}


def coverage(draw: Draw, experiments: int = EXPERIMENTS, seed: int = SEED) -> float:
    """The share of experiments whose interval holds the true value."""
    held = 0
    for number in range(experiments):
        found, truth = draw(np.random.default_rng([seed, number]))
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    return held / experiments


def table(experiments: int) -> str:
    many = 10 * experiments
    lines = [
        f"| interval | experiment | {experiments:,} | {many:,} |",
        "| --- | --- | ---: | ---: |",
    ]
    for name, draw in {**KINDS, **WRONG}.items():
        text = (draw.__doc__ or "").rstrip(".")
        few, more = coverage(draw, experiments), coverage(draw, many, SEED + 1)
        lines.append(f"| {name} | {text} | {few:.2%} | {more:.2%} |")
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
            "# Coverage of the 95 % intervals\n\n"
            "The share of simulated experiments whose interval holds the true value. Of 400 an\n"
            "exact interval has 95 % with a standard error of 1.1 %.\n\n"
            f"{made}\n\n`python benchmarks/estimates/interval_coverage.py --write`, "
            f"seeds {SEED} and {SEED + 1}; {versions}, scipy {scipy.__version__}.\n"
        )


if __name__ == "__main__":
    main()
