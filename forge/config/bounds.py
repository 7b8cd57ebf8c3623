"""Local checks: each value against the bounds and choices its own option declares."""

from __future__ import annotations

import dataclasses
import math
import operator
import typing
from collections.abc import Iterator
from typing import Any

from forge.config.errors import Problem, closest, did_you_mean
from forge.config.field import Section

COMPARE = {
    "gt": (operator.gt, "greater than"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "le": (operator.le, "at most"),
}


def check_bounds(section: Section, prefix: str = "") -> Iterator[Problem]:
    """Every value of the section, and of the sections below it, that its option does not admit."""
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        key, value = f"{prefix}{field.name}", getattr(section, field.name)
        if isinstance(value, Section):
            yield from check_bounds(value, f"{key}.")
            continue
        yield from _length(key, value, hints[field.name])
        if isinstance(value, list | tuple):
            for index, element in enumerate(value):
                yield from _element(f"{key}[{index}]", element, field.metadata)
        else:
            yield from _element(key, value, field.metadata)


def describe_bounds(metadata: typing.Mapping[str, Any]) -> str:
    """What an option admits, in words: 'greater than 0 and at most 1', or its choices."""
    if metadata.get("choices"):
        return ", ".join(metadata["choices"])
    return " and ".join(f"{COMPARE[name][1]} {limit:g}" for name, limit in metadata.get("bounds", {}).items())


def _element(key: str, value: Any, metadata: typing.Mapping[str, Any]) -> Iterator[Problem]:
    choices, bounds = metadata.get("choices"), metadata.get("bounds", {})
    if value is None or isinstance(value, bool):
        return
    if choices and value not in choices:
        meant = did_you_mean([f"{key}={c}" for c in closest(str(value), choices)])
        yield Problem(key=f"{key}={value}", what=f"{key} is one of {', '.join(choices)}.", fix=meant, rule="choices")
    if isinstance(value, int | float):
        finite = math.isfinite(value)
        if not finite or not all(COMPARE[name][0](value, limit) for name, limit in bounds.items()):
            admitted = describe_bounds(metadata) if finite else "finite"
            yield Problem(key=f"{key}={value}", what=f"{key} must be {admitted}.", fix=_nearest(key, bounds), rule="bounds")


def _nearest(key: str, bounds: dict[str, float]) -> str:
    for name in ("ge", "le"):
        if name in bounds:
            return f"for example {key}={bounds[name]:g}"
    return ""


def _length(key: str, value: Any, annotation: Any) -> Iterator[Problem]:
    if typing.get_origin(annotation) is tuple and value is not None:
        wanted = len(typing.get_args(annotation))
        if len(value) != wanted:
            yield Problem(key=f"{key}={list(value)}", what=f"{key} has {wanted} values, not {len(value)}.", rule="length")
