"""The decision rule of a sweep, written before it runs and judged by its report.

model.qk_norm=true beats model.qk_norm=false by 0.01
untied is no worse than tiny by 0.005
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FORM = re.compile(
    r"(?P<first>\S+) (?:(?P<beats>beats)|is no worse than) (?P<second>\S+)"
    r"(?: by (?P<by>[0-9.eE+-]+))?"
)
EXAMPLE = (
    """'sweep.decision="lr=1e-3 beats lr=1e-4 by 0.01"', or """
    "'sweep.decision=wide is no worse than base by 0.01'"
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Two arms or values, and the margin by which the first is to be better.

    A margin below zero is by how much it may be worse.
    """

    first: str
    second: str
    margin: float


def parse(text: str) -> Decision | None:
    """The rule in a text; None for an unreadable one."""
    match = FORM.fullmatch(" ".join(text.split()))
    if match is None or match["first"] == match["second"]:
        return None
    try:
        margin = float(match["by"] or 0.0)
    except ValueError:
        return None
    if not 0 <= margin < float("inf") or (not match["beats"] and margin == 0):
        return None
    sign = 1.0 if match["beats"] else -1.0
    return Decision(first=match["first"], second=match["second"], margin=sign * margin)


def names(point: Mapping[str, str]) -> Iterator[str]:
    """The arm and the values of a point, as a rule may name them: by the whole key or its end."""
    for key, value in point.items():
        if key == "arm":
            yield value
            continue
        words = key.split(".")
        for start in range(len(words)):
            yield normal(f"{'.'.join(words[start:])}={value}")


def normal(name: str) -> str:
    """A name with its number or truth value in one form: lr=0.001 for lr=1e-3."""
    key, sign, value = name.partition("=")
    if value.lower() in ("true", "false"):
        return f"{key}={value.lower()}"
    try:
        return f"{key}={float(value)!r}" if sign else name
    except ValueError:
        return name
