"""Faults of `optimizer.groups`, and of patterns of names, independent of the model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from forge.config.bounds import check_bounds, element_faults, fits, type_in_words
from forge.config.field import types_of
from forge.config.optimizers.base import PATTERNS, Optimizer
from forge.config.optimizers.param_groups import (
    ALL_ROLES,
    KIND,
    OF_RUN,
    PARAMETERS,
    ROLES,
    SCHEDULER,
    SELECTION,
    kinds,
)
from forge.config.optimizers.schedules import Scheduler
from forge.config.problems import Problem, closest, did_you_mean

RULE = "optimizer.groups"
Fault = tuple[str, str, str]
"""(key, what is wrong, what to do)."""


def check_values(config: Any) -> list[Problem]:
    """List values of a config that no option takes; groups of parameters are checked where the
    values of the optimizer are right.
    """
    problems = list(check_bounds(config))
    if not any(problem.option.startswith("optimizer.") for problem in problems):
        problems += _faults(config.optimizer, "optimizer.")
    return problems


def _faults(optimizer: Optimizer, prefix: str) -> Iterator[Problem]:
    """Yield the faults of a section with admitted values. prefix: of its keys."""
    faults = [
        fault
        for option in PATTERNS
        for fault in _of_patterns(f"{prefix}{option}", getattr(optimizer, option))
    ]
    for name, entry in optimizer.groups.items():
        faults += _of_entry(optimizer, f"{prefix}groups.{name}", name, entry)
    yield from (Problem(*fault, rule=RULE) for fault in faults)


def _of_entry(optimizer: Optimizer, key: str, name: str, entry: Any) -> Iterator[Fault]:
    if not re.fullmatch(r"[\w-]+", name):
        message = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
        yield key, message, "another name"
        return
    if not isinstance(entry, dict):
        message = "a group has options of an optimizer, and this is a value."
        yield f"{key}={entry}", message, f"+{key}={{roles: [embedding], lr: 1e-3}}"
        return
    if not any(entry.get(selection) for selection in SELECTION):
        message = "it does not say which parameters it is of."
        yield key, message, f"+{key}.{ROLES}=[embedding], or +{key}.{PARAMETERS}=[wq]"
    for selection in SELECTION:
        value = entry.get(selection, [])
        if not fits(value, list[str]):
            yield f"{key}.{selection}", "it must be a list of texts.", f"{key}.{selection}=[...]"
            return
    for role in entry.get(ROLES, []):
        if role not in ALL_ROLES:
            message = f"no parameter has the role {role}."
            yield f"{key}.{ROLES}", message, _meant(role, ALL_ROLES)
    yield from _of_patterns(f"{key}.{PARAMETERS}", entry.get(PARAMETERS, []))
    options = {option: value for option, value in entry.items() if option not in SELECTION}
    scheduler = options.pop(SCHEDULER, {})
    yield from _of_options(
        key, options, KIND, Optimizer, type(optimizer), more=(*SELECTION, SCHEDULER)
    )
    if not isinstance(scheduler, dict):
        message = "a schedule of a group has options of a schedule, and this is a value."
        hint = f"{key}.{SCHEDULER}={{scheduler: {scheduler}}}"
        yield f"{key}.{SCHEDULER}={scheduler}", message, hint
    elif scheduler:
        yield from _of_options(f"{key}.{SCHEDULER}", scheduler, SCHEDULER, Scheduler, None)


def _of_options(
    key: str,
    entry: Mapping[str, Any],
    kind_key: str,
    base: type[Any],
    default: type[Any] | None,
    more: Collection[str] = (),
) -> Iterator[Fault]:
    """Yield the faults of a group's options. default: the kind of an entry that names none;
    None = any.
    """
    variants = kinds(base)
    if kind_key in entry and entry[kind_key] not in variants:
        message = f"{kind_key} has no option '{entry[kind_key]}' that a group could have."
        yield f"{key}.{kind_key}={entry[kind_key]}", message, _meant(str(entry[kind_key]), variants)
        return
    if kind_key in entry:
        default = variants[entry[kind_key]]
    schemas = [default] if default else [*variants.values()]
    label = schemas[0].__name__ if len(schemas) == 1 else "a schedule"
    fields, hints = _fields_and_types(schemas)
    for option, value in entry.items():
        option_key = f"{key}.{option}"
        if option == kind_key:
            continue
        if option not in fields:
            candidates = closest(option, [*fields, *more])
            near = did_you_mean([f"{key}.{candidate}" for candidate in candidates])
            yield (
                option_key,
                f"{label} has {'an' if label[:2] == 'no' else 'no'} option '{option}'.",
                near or f"it has {', '.join(fields)}",
            )
        elif not fits(value, hints[option]):
            message = f"it must be {type_in_words(hints[option])}."
            yield f"{option_key}={value}", message, "another value"
        else:
            yield from _of_value(option_key, value, fields[option].metadata)


def _fields_and_types(
    schemas: Sequence[type[Any]],
) -> tuple[dict[str, dataclasses.Field[Any]], dict[str, Any]]:
    """The fields of the options of several schemas, and the types, by name."""
    fields = {
        field.name: field
        for schema in schemas
        for field in dataclasses.fields(schema)
        if field.name not in OF_RUN
    }
    return fields, {n: hint for schema in schemas for n, hint in types_of(schema).items()}


def _of_value(key: str, value: Any, metadata: Mapping[str, Any]) -> Iterator[Fault]:
    for element in value if isinstance(value, list | tuple) else [value]:
        for problem in element_faults(key, element, metadata):
            yield problem.key, problem.what, problem.fix or "another value"


def _of_patterns(key: str, patterns: Collection[str]) -> Iterator[Fault]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            message = f"'{pattern}' is no regular expression: {error}."
            yield key, message, f"'{re.escape(pattern)}' is the text itself"


def _meant(value: str, names: Collection[str]) -> str:
    return did_you_mean(closest(value, names)) or f"one of {', '.join(names)}"
