"""The effect of each factor of a grid: its values compared at equal other values and seed.

A cell is a combination of values with the results of its seeds. Two values of a factor are compared
cell by cell and seed by seed; the differences are averaged over the cells within each seed, since
runs of one seed share initial weights and data, and the interval is Student's t over the seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from scipy import stats

from forge.report.statistics import (
    ROUNDING,
    BySeed,
    Difference,
    Summary,
    difference,
    holm,
    summarize,
)
from forge.report.swept import Swept

FEWEST_CELLS = 0.5  # share of the combinations that a grid has, at least
Levels = tuple[str, ...]
Pairs = dict[Levels, dict[int, float]]
"""Differences between two values of a factor, by the other values and by seed."""


@dataclass(frozen=True, kw_only=True)
class AtLevel:
    """A value minus the reference where another factor has one value."""

    word: str
    level: str
    difference: Difference


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """Whether an effect depends on another factor: an F-test of differences, level by seed."""

    word: str
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best cell of a value: its other values, its results, and its difference to the best cell
    of the reference.
    """

    others: dict[str, str]
    summary: Summary
    difference: Difference = field(default_factory=Difference)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A value of a factor minus the reference. cells, seeds: averaged over."""

    value: str
    difference: Difference
    cells: int
    seeds: int
    p_holm: float | None
    by_level: tuple[AtLevel, ...]
    interactions: tuple[Interaction, ...]


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A factor of a grid. reference: the value compared with; chosen: it is the best, named by
    nobody. best: of every value the best cell.
    """

    key: str
    word: str
    others: tuple[str, ...]
    reference: str
    chosen: bool
    effects: tuple[Effect, ...]
    best: dict[str, Best]


def factors(
    options: Sequence[Swept],
    cells: Mapping[Levels, BySeed],
    *,
    higher: bool,
    references: Mapping[str, str],
) -> list[Factor]:
    """The factors of a grid of two options or more, in the order of typing; [] for other sweeps.

    cells: results by the values of the options, in their order. references: by key, named values
    to compare with; the best of any other.
    """
    full = {levels: values for levels, values in cells.items() if values}
    if len(options) < 2 or len(full) < FEWEST_CELLS * prod(len(o.values) for o in options):
        return []
    return [_factor(i, options, full, higher, references.get(o.key)) for i, o in enumerate(options)]


def _factor(
    at: int,
    options: Sequence[Swept],
    cells: Mapping[Levels, BySeed],
    higher: bool,
    reference: str | None,
) -> Factor:
    by_value: dict[str, dict[Levels, BySeed]] = {value: {} for value in options[at].values}
    for levels, values in cells.items():
        by_value[levels[at]][levels[:at] + levels[at + 1 :]] = values
    by_value = {value: of_value for value, of_value in by_value.items() if of_value}
    words = [option.word for i, option in enumerate(options) if i != at]
    base = reference if reference in by_value else _best_value(by_value, higher)
    effects = [
        _effect(value, of_value, by_value[base], words)
        for value, of_value in by_value.items()
        if value != base
    ]
    corrected = holm([effect.difference.p for effect in effects])
    return Factor(
        key=options[at].key,
        word=options[at].word,
        others=tuple(words),
        reference=base,
        chosen=base != reference,
        effects=tuple(replace(e, p_holm=p) for e, p in zip(effects, corrected, strict=True)),
        best=_best_cells(by_value, base, words, higher),
    )


def _effect(
    value: str, of_value: Mapping[Levels, BySeed], base: Mapping[Levels, BySeed], words: list[str]
) -> Effect:
    pairs = _pairs(of_value, base)
    table, settings, seeds = _complete(pairs)
    at_levels, interactions = [], []
    for i, word in enumerate(words):
        levels = dict.fromkeys(setting[i] for setting in pairs)
        for level in levels:
            of_level, _, ids = _complete({s: d for s, d in pairs.items() if s[i] == level})
            found = _over_seeds(of_level.mean(axis=0), ids)
            at_levels.append(AtLevel(word=word, level=level, difference=found))
        groups = [[k for k, s in enumerate(settings) if s[i] == level] for level in levels]
        by_level = [table[rows].mean(axis=0) for rows in groups if rows]
        interactions.append(Interaction(word=word, p=_interaction(by_level)))
    return Effect(
        value=value,
        difference=_over_seeds(table.mean(axis=0), seeds) if settings else Difference(),
        cells=len(settings),
        seeds=len(seeds),
        p_holm=None,
        by_level=tuple(at_levels),
        interactions=tuple(interactions),
    )


def _pairs(a: Mapping[Levels, BySeed], b: Mapping[Levels, BySeed]) -> Pairs:
    pairs = {
        setting: {
            seed: float(np.mean(a[setting][seed]) - np.mean(b[setting][seed]))
            for seed in sorted(a[setting].keys() & b[setting].keys())
        }
        for setting in a
        if setting in b
    }
    return {setting: by_seed for setting, by_seed in pairs.items() if by_seed}


def _complete(pairs: Pairs) -> tuple[np.ndarray, list[Levels], list[int]]:
    """The largest table of differences without a gap, [setting, seed], with at least two seeds
    where there are two; its settings and seeds.
    """
    ranked = sorted(pairs, key=lambda setting: -len(pairs[setting]))
    best: tuple[list[Levels], list[int]] = ([], [])
    for n in range(1, len(ranked) + 1):
        chosen = ranked[:n]
        seeds = sorted(set[int].intersection(*(set(pairs[setting]) for setting in chosen)))
        size, most = n * len(seeds), len(best[0]) * len(best[1])
        if (len(seeds) > 1, size) >= (len(best[1]) > 1, most) and seeds:
            best = chosen, seeds
    settings = [setting for setting in pairs if setting in best[0]]
    table = np.array([[pairs[s][seed] for seed in best[1]] for s in settings])
    return table.reshape(len(settings), len(best[1])), settings, best[1]


def _over_seeds(values: np.ndarray, seeds: Sequence[int]) -> Difference:
    """The mean of a difference by seed, tested against nothing."""
    if not len(values):
        return Difference()
    scale = {seed: [0.0] for seed in seeds}
    return difference({s: [float(v)] for s, v in zip(seeds, values, strict=True)}, scale)


def _interaction(by_level: Sequence[np.ndarray]) -> float | None:
    """p of the F-test that a difference is the same at every level; a table of levels by seeds."""
    table = np.array(by_level)
    if table.ndim < 2 or min(table.shape) < 2:
        return None
    n, k = table.shape
    rows, columns = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    of_levels = k * float(((rows - table.mean()) ** 2).sum()) / (n - 1)
    rest = float(((table - rows - columns + table.mean()) ** 2).sum()) / ((n - 1) * (k - 1))
    if rest <= (ROUNDING * float(np.abs(table).max())) ** 2:
        return None
    return float(stats.f.sf(of_levels / rest, n - 1, (n - 1) * (k - 1)))


def _best_value(by_value: Mapping[str, Mapping[Levels, BySeed]], higher: bool) -> str:
    """The value with the best mean over the cells and seeds that all values have."""
    every = [_runs(cells) for cells in by_value.values()]
    common = set.intersection(*(set(runs) for runs in every))
    means = {
        value: np.mean([x for place, x in runs.items() if place in common or not common])
        for value, runs in zip(by_value, every, strict=True)
    }
    return (max if higher else min)(means, key=lambda value: means[value])


def _runs(cells: Mapping[Levels, BySeed]) -> dict[tuple[Levels, int], float]:
    return {
        (setting, seed): float(np.mean(values))
        for setting, by_seed in cells.items()
        for seed, values in by_seed.items()
    }


def _best_cells(
    by_value: Mapping[str, Mapping[Levels, BySeed]], base: str, words: Sequence[str], higher: bool
) -> dict[str, Best]:
    """Of every value the best cell, among those with most seeds."""
    sign, best = -1 if higher else 1, {}
    for value, cells in by_value.items():
        most = max(map(len, cells.values()))
        candidates = [setting for setting in cells if len(cells[setting]) == most]
        results = {setting: _flat(cells[setting]) for setting in candidates}
        best[value] = min(candidates, key=lambda s, r=results: sign * float(np.mean(r[s])))
    reference = by_value[base][best[base]]
    return {
        value: Best(
            others=dict(zip(words, setting, strict=True)),
            summary=summarize(_flat(by_value[value][setting])),
            difference=Difference()
            if value == base
            else difference(by_value[value][setting], reference),
        )
        for value, setting in best.items()
    }


def _flat(by_seed: BySeed) -> list[float]:
    return [value for values in by_seed.values() for value in values]
