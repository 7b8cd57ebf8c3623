"""The page of a coordinate check: a table, and a plot of changes over sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from forge.report.html import escape

PLACES = ("embedding", "attention", "feed-forward", "stream", "logits")
FLAT = 0.25
"""Power of the width up to which a change counts as flat; without scaling it is 0.5 or 1."""
COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#a463f2")
SIDE, MARGIN = 300, 46
STYLE = (
    "body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}"
    "th:first-child,td:first-child{text-align:left}figure{display:inline-block;margin:1em}"
)


class Measured(NamedTuple):
    """The recorded rows of a run, one a step. label: of its scaling. size: width or depth."""

    label: str
    size: int
    rows: list[dict[str, Any]]

    def value(self, name: str) -> float:
        """The value of the last step."""
        return self.rows[-1][name]


class Growth(NamedTuple):
    """The change of an activation over widths, and the power of the width that fits it."""

    label: str
    place: str
    sizes: dict[int, float]
    power: float

    @property
    def is_flat(self) -> bool:
        return abs(self.power) <= FLAT


def growths(measured: Sequence[Measured]) -> list[Growth]:
    """The change of each activation by the last step, for every scaling."""
    found = []
    for label in dict.fromkeys(run.label for run in measured):
        for place in PLACES:
            runs = [run for run in measured if run.label == label]
            sizes = {run.size: run.value(f"{place} change") for run in runs}
            found.append(Growth(label, place, sizes, power(sizes)))
    return found


def power(sizes: dict[int, float]) -> float:
    """The power of the width that fits sizes best, by least squares of the logarithms."""
    x = [math.log(width) for width in sizes]
    y = [math.log(max(size, 1e-30)) for size in sizes.values()]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return over / sum((a - middle) ** 2 for a in x)


def markdown(measured: Sequence[Measured], steps: int, axis: str) -> str:
    """The table in Markdown."""
    widths = sorted({run.size for run in measured})
    heads = ["scaling", "activation", *map(str, widths), f"power of {axis}", "flat"]
    lines = [f"Change of activations in {steps - 1} updates (root mean square), by {axis}:", ""]
    lines += [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for growth in growths(measured):
        cells = [growth.label, growth.place]
        cells += [f"{growth.sizes[width]:.4g}" for width in widths]
        cells += [f"{growth.power:+.2f}", "yes" if growth.is_flat else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def page(measured: Sequence[Measured], steps: int, axis: str, command: str) -> str:
    """The page, with no other file."""
    found = growths(measured)
    labels = list(dict.fromkeys(growth.label for growth in found))
    figures = "".join(_figure(label, found) for label in labels)
    rows = [
        line.strip("| ").split(" | ") for line in markdown(measured, steps, axis).splitlines()[2:]
    ]
    head, _, *body = [row for row in rows if row != [""]]
    table = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body
    )
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>Coordinate check</title><style>{STYLE}</style><h1>Coordinate check</h1>"
        f"<p>Change of activations in {steps - 1} updates on one batch, by {axis}; both axes are "
        "logarithmic. A flat line means that the rates of the smallest model suit the largest."
        f"</p>{figures}<table><thead><tr>{heads}</tr></thead><tbody>{table}</tbody>"
        f"</table><p><code>python -m forge.coords {escape(command)}</code></p></html>\n"
    )


def _figure(label: str, found: Sequence[Growth]) -> str:
    """A plot of one scaling, on the axes of all."""
    widths = sorted(found[0].sizes)
    sizes = [size for growth in found for size in growth.sizes.values() if size > 0]
    low, high = math.log(min(sizes)), math.log(max(sizes))
    first, last = math.log(widths[0]), math.log(widths[-1])

    def point(width: int, size: float) -> str:
        x = MARGIN + SIDE * (math.log(width) - first) / (last - first)
        y = SIDE * (1 - (math.log(max(size, math.exp(low))) - low) / max(high - low, 1e-9))
        return f"{x:.1f},{y + 10:.1f}"

    parts = [
        f'<rect x="{MARGIN}" y="10" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>'
    ]
    parts += _axis(widths, first, last)
    for color, growth in zip(COLORS, (g for g in found if g.label == label), strict=True):
        points = " ".join(point(width, size) for width, size in growth.sizes.items())
        line = f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        parts.append(line)
        end = growth.sizes[widths[-1]]
        x, _, y = point(widths[-1], end).partition(",")
        parts.append(f'<text x="{float(x) + 4}" y="{y}" font-size="11">{growth.place}</text>')
    parts.append(f'<text x="4" y="18" font-size="11">{math.exp(high):.2g}</text>')
    parts.append(f'<text x="4" y="{SIDE + 10}" font-size="11">{math.exp(low):.2g}</text>')
    size = f'width="{SIDE + MARGIN + 90}" height="{SIDE + 40}"'
    body = "".join(parts)
    return f"<figure><svg {size}>{body}</svg><figcaption>{escape(label)}</figcaption></figure>"


def _axis(widths: Sequence[int], first: float, last: float) -> Iterator[str]:
    for width in widths:
        x = MARGIN + SIDE * (math.log(width) - first) / (last - first)
        anchor = f'x="{x:.1f}" y="{SIDE + 26}" font-size="11" text-anchor="middle"'
        yield f"<text {anchor}>{width}</text>"
