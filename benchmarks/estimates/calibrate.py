"""Fits constants of the model of time to published figures, each source left out in its turn.

    python benchmarks/estimates/calibrate.py --markdown benchmarks/results/calibration.md

Nothing runs: `published_figures` has the figures, `forge.planning.time` the model. A source is a
project: its figures share machines and code, so the two sets of KempnerForge are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import log
from statistics import fmean, median

from published import COMMON, LAPTOP, in_unit, show_page, with_calls
from published_figures import FIGURES, KEMPNER, LLAMA, SCALING, TITAN, Figure

from forge.compose import composition
from forge.config.devices import DEVICES, Device
from forge.config.root import Config
from forge.planning import calibration as known
from forge.planning.memory import Memory, memory_of
from forge.planning.time import device_of, step_time
from forge.resolve.resolve import worked_out

PROJECTS = {
    "KempnerForge": (KEMPNER, SCALING),
    "torchtitan": (TITAN,),
    "Llama 3": (LLAMA,),
}
GRID = {
    "lone": (0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.85),
    "contention": (0.0, 0.1, 0.2, 0.3),
    "warm": (0.9, 0.95, 1.0),
    "stragglers": (0.0, 0.003, 0.006, 0.012),
}
WORDS = {
    "lone": "share of a network card reached by groups of one rank a node",
    "contention": "slow-down of products beside communication, as a share of its time",
    "warm": "large products within training, over those measured alone; forge has it for the H200",
    "stragglers": "share of a step for each doubling of nodes",
}
BEFORE = {"lone": 0.85, "contention": 0.1, "warm": 1.0, "stragglers": 0.006}
NOW = {
    "lone": known.REACHED[known.LONE],
    "contention": known.CONTENTION,
    "warm": 0.95,
    "stragglers": known.STRAGGLERS,
}
ALONE = {"h200": 0.79}
"""Products of 8,192^3 measured by themselves."""
OF_TITAN = {"sustained": DEVICES["h100_500w"].sustained, "fp8": known.FP8_REACHED}
"""Fitted to torchtitan's figures."""
WITHOUT_TITAN = {"sustained": DEVICES["h100"].sustained * 500 / 700, "fp8": 1.0}
"""In their place where torchtitan is left out: products by power, fp8 as bf16."""
Constants = Mapping[str, float]


@cache
def resolved(figure: Figure) -> tuple[Config, Memory]:
    """The config of a figure, and its memory."""
    config, _ = worked_out(composition.config([*COMMON, *figure.overrides.split()]), devices=LAPTOP)
    return config, memory_of(config)


@cache
def _error(figure: Figure, constants: tuple[tuple[str, float], ...]) -> float:
    values = dict(constants)
    known.REACHED[known.LONE] = values["lone"]
    known.CONTENTION, known.STRAGGLERS = values["contention"], values["stragglers"]
    known.FP8_REACHED = values["fp8"]
    config, _ = resolved(figure)
    device = device_of(config)
    name = config.plan.device or ""
    share = values["sustained"]
    if name != "h100_500w":
        share = ALONE.get(name, device.sustained) * values["warm"]
    return _off(figure, replace(device, sustained=share))


def _off(figure: Figure, device: Device) -> float:
    config, memory = resolved(figure)
    time = step_time(config, device, config.plan.gpus_per_node, memory)
    assert time is not None
    return in_unit(figure, config, with_calls(time, figure.tp_calls)) / figure.published - 1


def errors(figures: Iterable[Figure], constants: Constants) -> list[float]:
    """Relative errors of the predictions of figures."""
    return [_error(figure, tuple(sorted(constants.items()))) for figure in figures]


def fitted(figures: list[Figure], others: Constants) -> Constants:
    """The constants of the grid with the least mean of absolute logarithms, one after another."""
    values = dict(BEFORE)
    for _ in range(2):
        for name, choices in GRID.items():
            loss = {
                choice: fmean(
                    abs(log(1 + error))
                    for error in errors(figures, values | {name: choice} | dict(others))
                )
                for choice in choices
            }
            values[name] = min(choices, key=lambda choice: loss[choice])
    return values


def report() -> Iterator[str]:
    """The page."""
    yield "# Constants of the model of time\n"
    script = "benchmarks/estimates/calibrate.py"
    yield f"    python {script} --markdown benchmarks/results/calibration.md\n"
    yield (
        f"Fitted to {len(FIGURES)} published figures over a grid, by the mean absolute logarithm;"
        " nothing was run. Each row but the first three\nis fitted without a project, and tested on"
        " it. Without torchtitan its GPU of 500 W gets products by power,\nand fp8 the share of"
        " bf16. Errors are medians of absolute values.\n"
    )
    yield "| constants | fitted to | " + " | ".join(GRID) + " | error where fitted | left out |"
    yield "| --- | --- |" + " ---: |" * (len(GRID) + 2)
    held_out: list[float] = []
    of_forge = [abs(_off(figure, device_of(resolved(figure)[0]))) for figure in FIGURES]
    error = median(map(abs, errors(FIGURES, dict(BEFORE) | OF_TITAN)))
    yield _row("guesses", "", BEFORE, f"{error:.1%}", "")
    yield _row("forge", "", NOW, f"{median(of_forge):.1%}", "")
    best = fitted(FIGURES, OF_TITAN)
    error = median(map(abs, errors(FIGURES, dict(best) | OF_TITAN)))
    yield _row("best", "all", best, f"{error:.1%}", "")
    for project, sets in PROJECTS.items():
        others = WITHOUT_TITAN if TITAN in sets else OF_TITAN
        inside = [figure for figure in FIGURES if figure.set not in sets]
        outside = [figure for figure in FIGURES if figure.set in sets]
        values = fitted(inside, others)
        tested = errors(outside, dict(values) | others)
        held_out += tested
        there = median(map(abs, errors(inside, dict(values) | others)))
        left_out = f"{median(map(abs, tested)):.1%} of {len(tested)}"
        yield _row("", f"all but {project}", values, f"{there:.1%}", left_out)
    yield f"\nLeft out, all {len(held_out)} figures: **{median(map(abs, held_out)):.1%}**.\n"
    yield from (f"- {name}: {words}" for name, words in WORDS.items())


def _row(name: str, where: str, constants: Constants, error: str, left_out: str) -> str:
    numbers = " | ".join(f"{constants[key]:g}" for key in GRID)
    return f"| {name} | {where} | {numbers} | {error} | {left_out} |"


def main() -> None:
    show_page(__doc__, report)


if __name__ == "__main__":
    main()
