"""Local checks: each value against the type, bounds and choices its option declares."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from forge.config.field import Section, types_of
from forge.config.places import address_fault, is_remote
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
AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?")
LARGEST = 1e18  # a product of sizes stays within what a float can hold


def check_bounds(section: Section, prefix: str = "") -> Iterator[Problem]:
    """Yield the values in the section that their options do not admit, or else the section's own
    faults.
    """
    problems = list(_of_options(section, prefix))
    yield from problems or section.faults(prefix)


def _of_options(section: Section, prefix: str) -> Iterator[Problem]:
    hints = types_of(type(section))
    for field in dataclasses.fields(section):
        hint, metadata = hints[field.name], field.metadata
        key, value = f"{prefix}{field.name}", getattr(section, field.name)
        if not fits(value, hint):
            choices = ", ".join(metadata.get("choices") or ())
            described = f"an integer or {choices}" if hint == int | str else type_in_words(hint)
            yield Problem(f"{key}={value}", f"{key} must be {described}.", rule="type")
        elif isinstance(value, Section):
            yield from check_bounds(value, f"{key}.")
        elif isinstance(value, list | tuple):
            if fault := length_fault(key, value, hint):
                yield Problem(f"{key}={list(value)}", fault, rule="length")
            for index, element in enumerate(value):
                yield from element_faults(f"{key}[{index}]", element, metadata)
        else:
            yield from element_faults(key, value, metadata)


def length_fault(key: str, value: Any, hint: Any) -> str:
    """The fault in the length of a tuple; empty for the right length or the wrong type."""
    if typing.get_origin(hint) is not tuple or not fits(value, hint):
        return ""
    length = len(typing.get_args(hint))
    return "" if len(value) == length else f"{key} has {length} values, not {len(value)}."


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type; the length of a tuple is not checked."""
    if hint is Any:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(element, inner[0]) for element in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            isinstance(name, str) and (inner[1] is Any or fits(entry, inner[1]))
            for name, entry in value.items()
        )
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def type_in_words(hint: Any) -> str:
    """A declared type in words: 'an integer or null', 'a list of texts'."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_in_words(option) for option in inner)
    if origin in (list, tuple):
        return f"a list of {type_in_words(inner[0]).partition(' ')[2]}s"
    if origin is dict:
        return "a dict of entries by name"
    return KINDS.get(hint) or f"a {hint.__name__} section"


def describe_bounds(metadata: Mapping[str, Any]) -> str:
    """The values an option admits, in words: 'greater than 0 and at most 1', or its choices."""
    choices = ", ".join(metadata.get("choices") or ())
    limits = metadata.get("bounds", {}).items()
    bounds = " and ".join(
        f"{COMPARE[name][1]} {limit if isinstance(limit, int) else format(limit, 'g')}"
        for name, limit in limits
    )
    return f"{bounds}, or {choices}" if bounds and choices else bounds or choices


def element_faults(key: str, value: Any, metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of one value of the right type."""
    choices, bounds = metadata.get("choices") or (), metadata.get("bounds", {})
    listed = not isinstance(value, str) or not choices or value in choices
    if not listed and not _is_amount(value, metadata):
        meant = did_you_mean([f"{key}={c}" for c in closest(value, choices)])
        admitted = f"must be an integer or {', '.join(choices)}"
        demand = admitted if bounds else f"is one of {', '.join(choices)}"
        yield Problem(f"{key}={value}", f"{key} {demand}.", meant, rule="choices")
    if _names_a_place(value, metadata) and (fault := address_fault(f"{key}=", value)):
        yield Problem(f"{key}={value}", *fault, rule="address")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    demand = ""
    if not math.isfinite(value):
        demand = "finite"
    elif not all(COMPARE[name][0](value, limit) for name, limit in bounds.items()):
        demand = describe_bounds(metadata)
    elif abs(value) > LARGEST and abs(value) > bounds.get("le", 0):
        demand = f"at most {LARGEST:g}"
    if demand:
        yield Problem(f"{key}={value}", f"{key} must be {demand}.", rule="bounds")


def _names_a_place(value: Any, metadata: Mapping[str, Any]) -> bool:
    """Whether a value names a file or folder of this machine, and no address that is taken too."""
    is_place = isinstance(value, str) and bool(metadata.get("path") or metadata.get("folder"))
    return is_place and not (metadata.get("address") and is_remote(value))


def _is_amount(value: str, metadata: Mapping[str, Any]) -> bool:
    """Whether a value is one of the `amounts` of an option, with a positive number after it."""
    name, _, number = value.partition(":")
    return (
        name in metadata.get("amounts", ()) and bool(AMOUNT.fullmatch(number)) and float(number) > 0
    )
