"""Curves on a terminal, each drawn with a letter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forge.config.numbers import compact

HEIGHT, SEVERAL = 14, "*"
Line = tuple[str, np.ndarray, np.ndarray]


def plot(lines: Sequence[Line], *, width: int, start: float = 0.0) -> list[str]:
    """Rows of text with axes; empty without points to draw.

    lines: letter, x, and y; x ascending. start: the first x drawn.
    """
    visible = [(sign, x[x >= start], y[x >= start]) for sign, x, y in lines]
    visible = [(sign, x, y) for sign, x, y in visible if len(x)]
    if not visible:
        return []
    low, high = min(y.min() for *_, y in visible), max(y.max() for *_, y in visible)
    first, last = min(x[0] for _, x, _ in visible), max(x[-1] for _, x, _ in visible)
    names = [f"{value:.5g}" for value in np.linspace(high, low, HEIGHT)]
    margin = max(map(len, names))
    columns = max(width - margin - 2, 10)
    sheet = [[" "] * columns for _ in range(HEIGHT)]
    for sign, x, y in visible:
        for column, position in enumerate(np.linspace(first, last, columns)):
            if x[0] <= position <= x[-1]:
                share = (high - np.interp(position, x, y)) / ((high - low) or 1.0)
                row = sheet[round(float(share) * (HEIGHT - 1))]
                row[column] = sign if row[column] in (" ", sign) else SEVERAL
    labelled = (0, HEIGHT // 2, HEIGHT - 1)
    rows = [
        f"{(names[i] if i in labelled else '').rjust(margin)} |{''.join(row).rstrip()}"
        for i, row in enumerate(sheet)
    ]
    ends = (compact(float(first)), compact(float(last)))
    below = " " * (margin + 2) + ends[0] + ends[1].rjust(columns - len(ends[0]))
    return [*rows, f"{' ' * margin} +{'-' * columns}", below]
