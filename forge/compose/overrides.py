"""Applying `key=value` overrides to a composed tree, with a problem for each that does not fit."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from textwrap import shorten
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import (
    BooleanNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    OmegaConf,
    StringNode,
    open_dict,
)
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from forge.compose import entries, expected, free
from forge.compose.engine import Library
from forge.compose.entries import meant
from forge.compose.tree import declared, in_force, section_at, values_of
from forge.compose.unknown import unknown
from forge.compose.unreadable import as_text, with_quotes
from forge.config import schemas
from forge.config.bounds import fits
from forge.config.field import default_of
from forge.config.problems import COMMAND_LINE, Problem, typed

KINDS = {
    IntegerNode: "an integer",
    FloatNode: "a number",
    BooleanNode: "true or false",
    StringNode: "a text",
}


def apply(tree: DictConfig, override: Override, library: Library) -> Problem | None:
    """Set one value in the tree, or say why it does not fit."""
    text, key = override.input_line or "", override.key_or_group
    if key.split(".")[0] in schemas.free_dicts():
        return free.apply(tree, override)
    if (place := entries.find(tree, override)) is not None:
        return entries.apply(*place, override)
    value = "" if override.is_delete() else override.get_value_string()
    fault = unknown(tree, key, library, value)
    if fault is not None:
        return _problem(text, fault.what, fault.fix)
    if override.is_delete():
        return _problem(text, "an option cannot be removed.", f"give it a value: {key}=...")
    if override.is_sweep_override():
        return _problem(
            text, f"{key} has several values, and this is not a sweep.", _one_of(tree, key, value)
        )
    if override.package is not None:
        return _problem(text, "only a group takes @.", f"write {key}={value}")
    if override.is_add():
        return _problem(text, f"{key} exists; + is for what does not.", f"write {key}={value}")
    return _assign(tree, key, override.value(), text)


def _assign(tree: DictConfig, key: str, value: Any, text: str) -> Problem | None:
    parent, _, name = key.rpartition(".")
    node = section_at(tree, parent)._get_node(name)
    found = declared(tree, key)
    hint = found.hint if found else None
    whole = isinstance(value, float) and value.is_integer()
    if whole and (isinstance(node, IntegerNode) or int in typing.get_args(hint)):
        value = int(value)
    elif isinstance(node, BooleanNode) and isinstance(value, int) and value not in (0, 1):
        return _problem(
            text, f"{key} is true or false; '{value}' is not.", ""
        )  # OmegaConf takes 2 for true
    elif (
        isinstance(node, StringNode)
        and isinstance(value, int | float | list)
        and (not isinstance(value, list) or schemas.said(key, "verbatim"))
    ):
        value = text.partition("=")[
            2
        ]  # a name such as 1.50 or 12e4 is what was typed, not the number; so is a token's, [SEP]
    try:
        OmegaConf.update(tree, key, value, merge=True)
    except (OmegaConfBaseException, OverflowError) as error:
        kind = KINDS.get(type(node)) or (
            expected.said(key, hint)
            if hint
            else "a list"
            if isinstance(node, ListConfig)
            else "a legal value"
        )
        shown, fix = text.split("=", 1)[1], expected.example(key, hint, in_force(tree, key))
        if schemas.is_section(key):
            what = f"'{shown}' does not fit {key}: {str(error).splitlines()[0].rstrip('.')}."
            what = (
                what
                if isinstance(value, dict)
                else f"{key} is a section of options; '{shown}' is not."
            )
            return _problem(text, what, f"set its options one by one, like {expected.below(key)}")
        if value is None:
            return _problem(text, f"{key} cannot be null; it is {kind}.", fix)
        if isinstance(value, dict | list) and hint is None:
            return _problem(
                text, f"'{shown}' does not fit {key}: {str(error).splitlines()[0]}", fix
            )
        if isinstance(value, list) and (several := expected.several(value, hint)):
            fix = (
                f"{key}={several} with -m, for a sweep over these"
                if len(value) > 1
                else f"{key}={several}"
            )
            fix += (
                f"; {instead}"
                if len(value) > 1 and (instead := schemas.said(key, "several"))
                else ""
            )
        return _problem(
            text, f"{key} is {kind}; '{shown}' is not.", meant(key, shown, value, hint) or fix
        )
    return None


def _one_of(tree: DictConfig, key: str, value: str) -> str:
    """What to do with several values where one is expected."""
    found = declared(tree, key)
    if found is None:
        return f"one value, or -m for a sweep; {key}=[{value}] for a list; quotes for a text"
    if typing.get_origin(found.hint) in (list, tuple):
        return f"{typed(key, with_quotes(f'[{value}]'))} for a list, or -m for a sweep"
    fixes = ["one value, or -m for a sweep"]
    if fits("", found.hint):
        fixes.append(f"{as_text(key, value)} for a text")
    return "; ".join([*fixes, *([instead] if (instead := schemas.said(key, "several")) else [])])


def open_ends(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Options without a value: missing, or an interpolation that fails.

    They get their default, so that the rest can be checked; an entry that has none is left out.
    """
    problems = []
    for key, section, name in list(values_of(tree)):
        try:
            value = section[name]
            for index in range(len(value) if isinstance(value, ListConfig) else 0):
                value[index]
            continue
        except MissingMandatoryValue:
            what, fix = "a value is missing.", f"give one: {key}=..."
        except OmegaConfBaseException as error:
            what, fix = (
                f"its interpolation fails: {shorten(str(error).splitlines()[0], 200)}.",
                "name an existing key in ${...}",
            )
        problems.append(Problem(key=key, what=what, fix=fix, where=written_at(key)))
        schema: Any = OmegaConf.get_type(section)
        if dataclasses.is_dataclass(schema):
            section[name] = default_of(schema.__dataclass_fields__[name])  # type: ignore[index]
        else:
            with open_dict(section):
                del section[name]
    return problems


def _problem(text: str, what: str, fix: str) -> Problem:
    return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)
