"""Overrides of an option that is a dict inside a section, like sweeper.params: entries that a user
adds, changes and removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from forge.compose import expected
from forge.compose.several import PARAMS, text_of
from forge.compose.unreadable import with_quotes
from forge.config import schemas
from forge.config.problems import COMMAND_LINE, Problem, literal, typed


def find(tree: DictConfig, override: Override) -> tuple[DictConfig, str] | None:
    """The dict that an override is of, and the name of an entry, dots and all; no name where it
    gives entries as a dict.
    """
    node: Any = tree
    parts = override.key_or_group.split(".")
    for depth, part in enumerate(parts, 1):
        node = node._get_node(part) if OmegaConf.is_dict(node) and part in node else None
        if node is None:
            return None
        if depth > 1 and OmegaConf.get_type(node) is dict:
            rest = ".".join(parts[depth:])
            return (
                (node, rest)
                if rest or (not override.is_delete() and isinstance(override.value(), dict))
                else None
            )
    return None


def apply(entries: DictConfig, name: str, override: Override) -> Problem | None:
    """Set or remove entries, or say why that cannot be. Several values are kept as they were typed,
    for the sweep that reads them.
    """
    text, key = override.input_line or "", override.key_or_group

    def problem(what: str, fix: str) -> Problem:
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)

    if override.is_delete():
        if name not in entries:
            names = ", ".join(str(known) for known in entries)
            return problem(
                f"{key.removesuffix(name).rstrip('.')} has no '{name}'.",
                f"it has {names}" if names else "it is empty",
            )
        with open_dict(entries):
            del entries[name]
        return None
    value: Any = text.partition("=")[2] if override.is_sweep_override() else override.value()
    if name and isinstance(value, bool | int | float):
        value = text.partition("=")[2]
    try:
        with open_dict(entries):
            for entry, own in (
                value.items() if not name and isinstance(value, Mapping) else [(name, value)]
            ):
                entries[str(entry)] = own
    except OmegaConfBaseException as error:
        if (
            not name
            and key == PARAMS
            and isinstance(value, Mapping)
            and all(map(several, value.values()))
        ):
            fix = " ".join(typed(f"{PARAMS}.{entry}", text_of(own)) for entry, own in value.items())
            return problem(
                "several values of sweeper.params have commas between them, and nothing around them.",
                fix,
            )
        hint = schemas.declared(key)
        if not name or hint is None:
            return problem(
                f"it does not fit {key}: {str(error).splitlines()[0].rstrip('.')}.",
                "docs/options.md says what it holds",
            )
        shown = text.partition("=")[2]
        return problem(
            f"{key} is {expected.said(key, hint)}; '{shown}' is not.",
            meant(key, shown, value, hint),
        )
    return None


def several(value: Any) -> bool:
    """Whether a value is one or, as a list, several that a sweep can have."""
    return not isinstance(value, Mapping) and value != [] and value is not None


def meant(key: str, shown: str, value: Any, hint: Any) -> str:
    """A list or a time as it would be typed for what was; empty where there is no telling. shown:
    the value as it was typed.
    """
    if isinstance(value, list) and key.startswith(f"{PARAMS}."):
        return f"{key}={shown.strip()[1:-1]}"
    found = expected.meant(key, value, hint)
    if found is None:
        return ""
    if not isinstance(found, list):
        return typed(key, literal(found))
    listed = (
        with_quotes(f"[{shown}]") if len(found) == 1 and isinstance(value, str) else literal(found)
    )
    return typed(key, listed if found else "[]")
