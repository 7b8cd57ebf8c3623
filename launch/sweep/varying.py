"""What tells the points of a sweep from one another, by what was typed for each."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from forge.compose.grammar import read
from forge.config.problems import shown
from forge.config.spelling import ours
from forge.launch.sweep.directory import Point
from forge.launch.sweep.expand import OF_ALL

ASIDE = (*OF_ALL, "run")
"""Sections that say how points are started and kept."""


def columns(points: Sequence[Point]) -> dict[str, list[str]]:
    """The cells of each key that points of one arm differ in or a command varied, a point each; ''
    where it was not typed.

    Whatever tells one arm of an ablation from another is told by its name.
    """
    typed = [_typed(point) for point in points]
    varied = dict.fromkeys(key for point in points for key in point.varied)
    others = dict.fromkeys(
        key for own in typed for key in own if key.partition(".")[0] not in ASIDE
    )
    keys = [*varied, *(key for key in others if key not in varied and _differs(key, points, typed))]
    return {key: [_cell(own[key]) if key in own else "" for own in typed] for key in keys}


def _differs(key: str, points: Sequence[Point], typed: Sequence[dict[str, str]]) -> bool:
    kinds = {
        (point.arm, _same(own[key]) if key in own else None)
        for point, own in zip(points, typed, strict=True)
    }
    return len(kinds) > len({arm for arm, _ in kinds})


def _typed(point: Point) -> dict[str, str]:
    """What was typed last of each key, with what varies."""
    words = [ours(text).partition("=") for text in point.overrides]
    typed = {key.lstrip("+~"): "~" if key.startswith("~") else value for key, _, value in words}
    return {**typed, **point.varied}


@functools.cache
def _cell(text: str) -> str:
    """A value as it is shown: 0.001 for 1e-3, without quotes."""
    override = read(f"key={text}")
    return (
        shown(override.value())
        if isinstance(override, Override) and not override.is_sweep_override()
        else text
    )


def _same(text: str) -> float | str:
    """One and the same for all spellings of a value."""
    cell = _cell(text)
    try:
        return float(cell)
    except ValueError:
        return cell
