"""Applying `key=value` overrides to a composed tree, with a problem for each that does not fit."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator
from textwrap import shorten
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import BooleanNode, DictConfig, FloatNode, IntegerNode, ListConfig, OmegaConf, StringNode, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from forge.config import entries, expected, free, schemas, seeds
from forge.config.entries import meant
from forge.config.errors import Problem, closest, did_you_mean
from forge.config.field import Section, default_of, types_of
from forge.config.grammar import COMMAND_LINE
from forge.config.literal import quoted
from forge.config.unreadable import typed

KINDS = {IntegerNode: "an integer", FloatNode: "a number", BooleanNode: "true or false", StringNode: "a text"}


def apply(tree: DictConfig, override: Override, groups: Iterable[str]) -> Problem | None:
    """Set one value in the tree, or say why it does not fit."""
    text, key = override.input_line or "", override.key_or_group
    if key.split(".")[0] in schemas.free_dicts():
        return free.apply(tree, override)
    if (place := entries.find(tree, override)) is not None:
        return entries.apply(*place, override)
    value = "" if override.is_delete() else override.get_value_string()
    fault = unknown(tree, key, groups)
    if fault is not None:
        meant = [f"{fault.meant[0]}={value}" if value else fault.meant[0], *fault.meant[1:]] if fault.meant else []
        return _problem(text, fault.what, did_you_mean(meant) or fault.hint)
    if override.is_delete():
        return _problem(text, "an option cannot be removed.", f"give it a value: {key}=...")
    if override.is_sweep_override():
        fixes = ["one value, or -m for a sweep", *_instead(tree, key, value)]
        return _problem(text, f"{key} has several values, and this is not a sweep.", "; ".join(fixes))
    if override.package is not None:
        return _problem(text, "only a group takes @.", f"write {key}={value}")
    if override.is_add():
        return _problem(text, f"{key} exists; + is for what does not.", f"write {key}={value}")
    return _assign(tree, key, override.value(), text)


def _assign(tree: DictConfig, key: str, value: Any, text: str) -> Problem | None:
    parent, _, name = key.rpartition(".")
    node = _section(tree, parent)._get_node(name)
    whole = isinstance(value, float) and value.is_integer()
    if whole and (isinstance(node, IntegerNode) or int in typing.get_args(declaration(tree, key)[0])):
        value = int(value)
    elif isinstance(node, BooleanNode) and isinstance(value, int) and value not in (0, 1):
        return _problem(text, f"{key} is true or false; '{value}' is not.", "")  # OmegaConf takes 2 for true
    elif (
        isinstance(node, StringNode)
        and isinstance(value, int | float | list)
        and (not isinstance(value, list) or schemas.said(key, "verbatim"))
    ):
        value = text.partition("=")[2]  # a name such as 1.50 or 12e4 is what was typed, not the number; so is a token's, [SEP]
    try:
        OmegaConf.update(tree, key, value, merge=True)
    except (OmegaConfBaseException, OverflowError) as error:
        hint, default = declaration(tree, key)
        kind = KINDS.get(type(node)) or (
            expected.said(key, hint) if hint else "a list" if isinstance(node, ListConfig) else "a legal value"
        )
        shown, fix = text.split("=", 1)[1], expected.example(key, hint, default)
        if schemas.is_section(key):
            what = f"'{shown}' does not fit {key}: {str(error).splitlines()[0].rstrip('.')}."
            what = what if isinstance(value, dict) else f"{key} is a section of options; '{shown}' is not."
            return _problem(text, what, f"set its options one by one, like {expected.below(key)}")
        if value is None:
            return _problem(text, f"{key} cannot be null; it is {kind}.", fix)
        if isinstance(value, dict | list) and hint is None:
            return _problem(text, f"'{shown}' does not fit {key}: {str(error).splitlines()[0]}", fix)
        if isinstance(value, list) and (several := expected.several(value, hint)):
            fix = f"{key}={several} with -m, for a sweep over these" if len(value) > 1 else f"{key}={several}"
            fix += f"; {instead}" if len(value) > 1 and (instead := schemas.said(key, "several")) else ""
        return _problem(text, f"{key} is {kind}; '{shown}' is not.", meant(key, shown, value, hint) or fix)
    return None


def declaration(tree: DictConfig, key: str) -> tuple[Any, Any]:
    """The declared type of an option, and its default; None for what has no class."""
    above, _, name = key.rpartition(".")
    schema = OmegaConf.get_type(_section(tree, above))
    if not isinstance(schema, type) or not issubclass(schema, Section) or name not in schema.__dataclass_fields__:
        return None, None
    return types_of(schema)[name], default_of(schema.__dataclass_fields__[name])


def _instead(tree: DictConfig, key: str, value: str) -> Iterator[str]:
    """What several values could be for an option, other than a sweep."""
    hint = declaration(tree, key)[0]
    if typing.get_origin(hint) in (list, tuple) or hint is None:
        yield f"{key}=[{value}] for a list"
    elif str in (hint, *typing.get_args(hint)) and "," in value:
        yield f"{typed(key, quoted(value))} for a text"
    if other := schemas.said(key, "several"):
        yield other


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A key that does not exist: why, what was probably meant, and a hint where nothing close exists."""

    what: str
    meant: list[str]
    hint: str = ""


def unknown(tree: DictConfig, key: str, groups: Iterable[str]) -> Unknown | None:
    """None when `key` names an option or section of the tree; else what is wrong with it."""
    node: Any = tree
    if "/" in key:
        dotted = key.replace("/", ".")
        meant = [dotted] if unknown(tree, dotted, groups) is None else []
        return Unknown(f"there is no group '{key}', and options are written with dots.", meant, "python -m forge.train --help lists them")
    parts = key.split(".")
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        if isinstance(node, ListConfig):
            return Unknown(f"{above} is a list, and is given as a whole.", [], f"{above}=[...]")
        if not OmegaConf.is_dict(node):
            return Unknown(f"{above} is a value and has nothing below it.", [above])
        if part not in node:
            return _missing(tree, node, key, above, part, groups)
        node = node._get_node(part)
    return None


def _missing(tree: DictConfig, node: DictConfig, key: str, above: str, part: str, groups: Iterable[str]) -> Unknown:
    said = seeds.suggestion(key)
    schema = OmegaConf.get_type(node)
    what = f"{schema.__name__ if dataclasses.is_dataclass(schema) else above} has no option '{part}'." if above else ""
    if said and seeds.names(key):
        return Unknown(what or f"there is no group or option '{part}'.", [], said)
    if not above:
        return _missing_group(tree, key, part, groups, said)
    other = _elsewhere(above, part)
    if other:
        fix = "choose one of these, or leave this out" if "," in other else f"choose {other}, or leave this out"
        return Unknown(f"{what} It belongs to {other}.", [], fix)
    rest = key.removeprefix(f"{above}.{part}")
    meant = [k for k in option_keys(tree) if k.endswith(f".{part}")][:3] or [f"{above}.{n}" for n in closest(part, map(str, node))]
    meant = [f"{k}{rest}" if OmegaConf.is_dict(OmegaConf.select(tree, k)) else k for k in meant]
    return Unknown(what, meant, said or f"its options: {', '.join(str(k) for k in node if not str(k).startswith('_'))}")


def _missing_group(tree: DictConfig, key: str, part: str, groups: Iterable[str], said: str | None) -> Unknown:
    rest = key[len(part) :]
    if rest and part in groups:
        return Unknown(f"{part} is a group without options of its own.", [], f"choose one of its files: {part}=...")
    names = [*groups, *(str(k) for k in tree)]
    meant = closest(part, names)
    meant = [name + rest for name in meant if name in tree and unknown(tree, name + rest, groups) is None] or meant
    meant = meant or [k for k in option_keys(tree) if k.rpartition(".")[2] == key.rpartition(".")[2]][:3]
    return Unknown(f"there is no group or option '{part}'.", meant, said or "python -m forge.train --help lists them")


def _elsewhere(group: str, part: str) -> str:
    """Which other variants of the group have this option."""
    owners = [name for name, schema in schemas.SCHEMAS.get(group, {}).items() if part in (f.name for f in dataclasses.fields(schema))]
    return ", ".join(f"{group}={name}" for name in owners)


def option_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values in the tree, but for the entries that a user adds to an option of a section."""
    for key, section, _ in _values(tree):
        if OmegaConf.get_type(section) is not dict or key.partition(".")[0] in schemas.free_dicts():
            yield key


def _values(section: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig, str]]:
    """Every value below a section: its dotted key, what holds it, and its name there."""
    for name in section:
        node = section._get_node(name)
        if isinstance(node, DictConfig) and node and not (node._is_missing() or node._is_interpolation()):
            yield from _values(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section, str(name)


def open_ends(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Options without a value: missing, or an interpolation that fails.

    They get their default, so that the rest can be checked; an entry that has none is left out.
    """
    problems = []
    for key, section, name in list(_values(tree)):
        try:
            value = section[name]
            for index in range(len(value) if isinstance(value, ListConfig) else 0):
                value[index]
            continue
        except MissingMandatoryValue:
            what, fix = "a value is missing.", f"give one: {key}=..."
        except OmegaConfBaseException as error:
            what, fix = f"its interpolation fails: {shorten(str(error).splitlines()[0], 200)}.", "name an existing key in ${...}"
        problems.append(Problem(key=key, what=what, fix=fix, where=written_at(key)))
        schema: Any = OmegaConf.get_type(section)
        if dataclasses.is_dataclass(schema):
            section[name] = default_of(schema.__dataclass_fields__[name])  # type: ignore[index]
        else:
            with open_dict(section):
                del section[name]
    return problems


def _section(tree: DictConfig, key: str) -> DictConfig:
    return OmegaConf.select(tree, key) if key else tree


def _problem(text: str, what: str, fix: str) -> Problem:
    return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)
