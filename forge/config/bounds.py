"""Local checks: each value against the bounds and choices its own option declares."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import types
import typing
from collections.abc import Iterator
from typing import Any

from forge.config.field import Section, types_of
from forge.config.problems import Problem, closest, did_you_mean

COMPARE = {
    "gt": (operator.gt, "greater than"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "le": (operator.le, "at most"),
}
KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
}
LARGEST = 1e18  # a product of sizes stays within what a float can hold


def check_bounds(section: Section, prefix: str = "") -> Iterator[Problem]:
    """Every value of the section, and of the sections below it, that its option does not admit."""
    for name, hint, metadata in _options(type(section)):
        key, value = f"{prefix}{name}", getattr(section, name)
        if not fits(value, hint):
            described = (
                f"an integer or {', '.join(metadata['choices'])}"
                if hint == int | str
                else kind(hint)
            )
            yield Problem(key=f"{key}={value}", what=f"{key} must be {described}.", rule="type")
        elif isinstance(value, Section):
            yield from check_bounds(value, f"{key}.")
        elif isinstance(value, list | tuple):
            yield from _length(key, value, hint)
            for index, element in enumerate(value):
                yield from element_faults(f"{key}[{index}]", element, metadata)
        else:
            yield from element_faults(key, value, metadata)


@functools.cache
def _options(schema: type[Section]) -> tuple[tuple[str, Any, typing.Mapping[str, Any]], ...]:
    hints = types_of(schema)
    return tuple(
        (field.name, hints[field.name], field.metadata) for field in dataclasses.fields(schema)
    )


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type that its option declares; the length of a tuple is another
    matter.
    """
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if isinstance(value, bool):
            return hint is bool
        return isinstance(value, int | float if hint is float else hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(element, inner[0]) for element in value)
    if (
        origin is not dict
        or not isinstance(value, dict)
        or not all(isinstance(name, str) for name in value)
    ):
        return False
    return inner[1] is Any or all(fits(entry, inner[1]) for entry in value.values())


def kind(hint: Any) -> str:
    """A declared type in words: 'an integer or null', 'a list of texts'."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(option) for option in inner)
    if origin in (list, tuple):
        return f"a list of {kind(inner[0]).partition(' ')[2]}s"
    if origin is dict:
        return "a dict of entries by name"
    return KINDS.get(hint) or f"a {hint.__name__} section"


def describe_bounds(metadata: typing.Mapping[str, Any]) -> str:
    """What an option admits, in words: 'greater than 0 and at most 1', or its choices."""
    choices = ", ".join(metadata.get("choices") or ())
    bounds = " and ".join(
        f"{COMPARE[name][1]} {_number(limit)}" for name, limit in metadata.get("bounds", {}).items()
    )
    return f"{bounds}, or {choices}" if bounds and choices else bounds or choices


def element_faults(key: str, value: Any, metadata: typing.Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with one value, or one of a list, of the right type."""
    choices, bounds = metadata.get("choices"), metadata.get("bounds", {})
    if value is None or isinstance(value, bool):
        return
    if choices and isinstance(value, str) and value not in choices:
        meant = did_you_mean([f"{key}={c}" for c in closest(value, choices)])
        what = (
            f"{key} must be an integer or {', '.join(choices)}."
            if bounds
            else f"{key} is one of {', '.join(choices)}."
        )
        yield Problem(key=f"{key}={value}", what=what, fix=meant, rule="choices")
    if isinstance(value, int | float):
        broken = [name for name, limit in bounds.items() if not COMPARE[name][0](value, limit)]
        if isinstance(value, float) and not math.isfinite(value):
            yield Problem(key=f"{key}={value}", what=f"{key} must be finite.", rule="bounds")
        elif broken:
            legal = next((bounds[name] for name in broken if name in ("ge", "le")), None)
            if (
                legal is None
                and "gt" in broken
                and isinstance(value, int)
                and bounds["gt"] + 1 < bounds.get("lt", math.inf)
            ):
                legal = bounds["gt"] + 1
            fix = (
                f"for example {key}={_number(legal)}"
                if legal is not None and "[" not in key
                else ""
            )
            yield Problem(
                key=f"{key}={value}",
                what=f"{key} must be {describe_bounds(metadata)}.",
                fix=fix,
                rule="bounds",
            )
        elif abs(value) > LARGEST:
            yield Problem(
                key=f"{key}={value}", what=f"{key} must be at most {LARGEST:g}.", rule="bounds"
            )


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _length(key: str, value: Any, annotation: Any) -> Iterator[Problem]:
    if typing.get_origin(annotation) is tuple and value is not None:
        wanted = len(typing.get_args(annotation))
        if len(value) != wanted:
            yield Problem(
                key=f"{key}={list(value)}",
                what=f"{key} has {wanted} values, not {len(value)}.",
                rule="length",
            )
