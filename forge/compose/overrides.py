"""Applying `key=value` overrides to a composed tree, with a problem for each that does not fit.

An override sets an option, or an entry of a dict that users add to: `callbacks` and `trackers`,
where `+` adds and `~` removes, and dicts inside a section, such as `sweeper.params`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from textwrap import shorten
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, IntegerNode, ListConfig, OmegaConf, StringNode, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from forge.compose import values
from forge.compose.engine import Library
from forge.compose.grammar import as_text, with_quotes
from forge.compose.tree import declared, in_force, section_at, values_of
from forge.compose.unknown import Keys
from forge.config import schemas
from forge.config.bounds import fits, kind
from forge.config.field import default_of
from forge.config.problems import COMMAND_LINE, Problem, closest, did_you_mean, literal, typed

PARAMS = "sweeper.params"
Fault = tuple[str, str]
"""What is wrong, and what to do."""


def apply(tree: DictConfig, override: Override, library: Library) -> Problem | None:
    """Set one value in the tree, or say why it does not fit."""
    if override.key_or_group.partition(".")[0] in schemas.free_dicts():
        fault = _apply_to_free_dict(tree, override)
    elif (entry := _entry_of(tree, override)) is not None:
        fault = _apply_to_entry(*entry, override)
    else:
        fault = _apply_to_option(tree, override, library)
    return Problem(override.input_line or "", *fault, where=COMMAND_LINE) if fault else None


def _apply_to_option(tree: DictConfig, override: Override, library: Library) -> Fault | None:
    key = override.key_or_group
    value = "" if override.is_delete() else override.get_value_string()
    if found := Keys(tree, library).unknown(key, value):
        return found
    if override.is_delete():
        return "an option cannot be removed.", f"give it a value: {key}=..."
    if override.is_sweep_override():
        return f"{key} has several values, and this is not a sweep.", _one_of(tree, key, value)
    if override.package is not None:
        return "only a group takes @.", f"write {key}={value}"
    if override.is_add():
        return f"{key} exists; + is for what does not.", f"write {key}={value}"
    return _set_option(tree, key, override.value(), (override.input_line or "").partition("=")[2])


def _set_option(tree: DictConfig, key: str, value: Any, text: str) -> Fault | None:
    """Set an option to a value. text: the value as it was typed."""
    above, _, name = key.rpartition(".")
    node = section_at(tree, above)._get_node(name)
    found = declared(tree, key)
    hint = found.hint if found else None
    takes_int = isinstance(node, IntegerNode) or int in typing.get_args(hint)
    if takes_int and isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(node, StringNode) and (
        isinstance(value, int | float)
        or (isinstance(value, list) and schemas.fact(key, "verbatim"))
    ):
        value = text  # a name such as 1.50 or 12e4, or a token such as [SEP], is what was typed
    try:
        OmegaConf.update(tree, key, value, merge=True)
        return None
    except (OmegaConfBaseException, OverflowError) as error:
        if hint is not None:
            fix = _value_instead(key, text, value, hint, in_force(tree, key))
            return f"{key} is {kind(hint)}; '{text}' is not.", fix
        fix = f"set its options one by one, like {values.option_below(key)}=..."
        if isinstance(value, dict):
            return f"'{text}' does not fit {key}: {_first_line(error)}.", fix
        return f"{key} is a section of options; '{text}' is not.", fix


def _value_instead(key: str, text: str, value: Any, hint: Any, now: Any) -> str:
    """What to type for a value of another type. now: the value in force."""
    if fix := _meant(key, text, value, hint):
        return fix
    sweep = values.several(value, hint) if isinstance(value, list) else ""
    if not sweep:
        return values.example(key, hint, now) or values.meaning_of_dict(key)
    if len(value) == 1:
        return f"{key}={sweep}"
    instead = schemas.fact(key, "not_swept")
    return f"{key}={sweep} with -m, for a sweep over these" + (f"; {instead}" if instead else "")


def _meant(key: str, text: str, value: Any, hint: Any) -> str:
    """The override that was probably meant; empty where there is no telling."""
    found = values.meant(key, value, hint)
    if not isinstance(found, list):
        return "" if found is None else f"{key}={found}"
    if len(found) == 1 and isinstance(value, str):
        return typed(key, with_quotes(f"[{text}]"))
    return typed(key, literal(found))


def _one_of(tree: DictConfig, key: str, value: str) -> str:
    """What to do with several values where one is expected."""
    found = declared(tree, key)
    if found and typing.get_origin(found.hint) in (list, tuple):
        return f"{typed(key, with_quotes(f'[{value}]'))} for a list, or -m for a sweep"
    fixes = ["one value, or -m for a sweep"]
    if found and fits("", found.hint):
        fixes.append(f"{as_text(key, value)} for a text")
    return "; ".join([*fixes, *filter(None, [schemas.fact(key, "not_swept")])])


def _entry_of(tree: DictConfig, override: Override) -> tuple[DictConfig, str] | None:
    """The dict inside a section that an override is of, and the name of its entry, dots and all; no
    name where entries are given as a dict.
    """
    node: Any = tree
    parts = override.key_or_group.split(".")
    for depth, part in enumerate(parts, 1):
        node = node._get_node(part) if OmegaConf.is_dict(node) and part in node else None
        if node is None:
            return None
        if depth > 1 and OmegaConf.get_type(node) is dict:
            name = ".".join(parts[depth:])
            is_dict = not override.is_delete() and isinstance(override.value(), dict)
            return (node, name) if name or is_dict else None
    return None


def _apply_to_entry(entries: DictConfig, name: str, override: Override) -> Fault | None:
    """Set or remove entries. Several values are kept as typed, for the sweep that reads them."""
    key, text = override.key_or_group, (override.input_line or "").partition("=")[2]
    if override.is_delete():
        if name not in entries:
            return _no_entry(key.removesuffix(name).rstrip("."), name, entries)
        with open_dict(entries):
            del entries[name]
        return None
    value: Any = text if override.is_sweep_override() else override.value()
    if name and isinstance(value, bool | int | float):
        value = text
    try:
        with open_dict(entries):
            for entry, own in (value if not name else {name: value}).items():
                entries[str(entry)] = own
        return None
    except OmegaConfBaseException as error:
        hint = schemas.declared(key)
        if not name or hint is None:
            return (
                f"it does not fit {key}: {_first_line(error)}.",
                "docs/options.md says what it holds",
            )
        is_sweep = isinstance(value, list) and key.startswith(f"{PARAMS}.")
        fix = f"{key}={as_values(value)}" if is_sweep else _meant(key, text, value, hint)
        return f"{key} is {kind(hint)}; '{text}' is not.", fix or values.meaning_of_dict(key)


def _no_entry(above: str, name: str, entries: DictConfig, rest: str | None = None) -> Fault:
    """What is said of an entry that does not exist. rest: of an override that is no removal, what
    follows the name.
    """
    names = [str(known) for known in entries]
    start = "~" if rest is None else ""
    near = [f"{start}{above}.{known}{rest or ''}" for known in closest(name, names)]
    there = f"it has {', '.join(names)}" if names else "it is empty"
    fix = did_you_mean(near) + (f" {there}" if rest is None else "")
    return f"{above} has no '{name}'.", fix.strip()


def _apply_to_free_dict(tree: DictConfig, override: Override) -> Fault | None:
    """Add (`+`), change or remove (`~`) what a key in `callbacks` or `trackers` names."""
    text, key = override.input_line or "", override.key_or_group
    root, *parts = key.split(".")
    if override.package is not None:
        return "only a group takes @.", f"write {text.replace('@' + override.package, '', 1)}"
    if override.is_sweep_override():
        what = f"{key} has several values, and this is not a sweep."
        return what, f"one value, or -m for a sweep; {key}=[...] for a list"
    if not parts and override.is_delete():
        return f"{root} itself cannot be removed; its entries can.", f"~{root}.NAME"
    if not parts and not isinstance(override.value(), dict):
        return f"{root} is a dict of entries by name.", f"+{root}.NAME._target_=mypkg.Mine adds one"
    parent, node = tree, tree._get_node(root)
    for depth, part in enumerate(parts):
        above = ".".join([root, *parts[:depth]])
        if not isinstance(node, DictConfig):
            return f"{above} is a value and has nothing below it.", f"write {above}=..."
        if part not in node:
            if override.is_delete():
                return _no_entry(above, part, node)
            if override.type is OverrideType.CHANGE:
                what, near = _no_entry(above, part, node, text.removeprefix(f"{above}.{part}"))
                return what, f"{near} +{text} adds it".strip()
            break
        parent, node = node, node._get_node(part)
    else:
        if parts and override.type is OverrideType.ADD:
            return f"{key} exists; + is for what does not.", f"write {text.lstrip('+')}"
    if override.is_delete():
        if override.value() is not None:
            return "a removal takes no value.", f"write ~{key}"
        with open_dict(parent):
            del parent[parts[-1]]
        return None
    try:
        OmegaConf.update(tree, key, override.value(), merge=True, force_add=True)
        return None
    except OmegaConfBaseException as error:
        return f"it does not fit {key}: {_first_line(error)}.", f"{root} holds entries by name"


def lists_as_values(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Make texts of the lists that files have in `sweeper.params`, in place; a dict there is taken
    out, and is a problem.
    """
    params = tree.sweeper._get_node("params")
    problems = []
    for key in list(params) if isinstance(params, DictConfig) and params else []:
        value: Any = params._get_node(key)
        if isinstance(value, ListConfig):
            params[key] = as_values(OmegaConf.to_container(value, resolve=False))
        elif isinstance(value, DictConfig):
            with open_dict(params):
                del params[key]
            what, fix = f"{PARAMS} has dotted keys, with nothing below them.", f"{key}.NAME: A,B"
            name = f"{PARAMS}.{key}"
            problems.append(Problem(name, what, fix, where=written_at(name)))
    return problems


def as_values(value: Any) -> str:
    """Values as they are typed for a sweep: a list with commas between them, a text as it is."""
    if isinstance(value, list):
        return ",".join(inner if isinstance(inner, str) else literal(inner) for inner in value)
    return value if isinstance(value, str) else literal(value)


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
            fault = "a value is missing.", f"give one: {key}=..."
        except OmegaConfBaseException as error:
            said = shorten(_first_line(error), 200)
            fault = f"its interpolation fails: {said}.", "name an existing key in ${...}"
        problems.append(Problem(key, *fault, where=written_at(key)))
        schema: Any = OmegaConf.get_type(section)
        if dataclasses.is_dataclass(schema):
            section[name] = default_of(schema.__dataclass_fields__[name])  # type: ignore[index]
        else:
            with open_dict(section):
                del section[name]
    return problems


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
