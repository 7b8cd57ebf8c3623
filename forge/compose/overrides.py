"""Applying `key=value` overrides to a composed tree, with a problem for each that does not fit.

An override sets an option, or an entry of a dict that users add to: `callbacks` and `trackers`,
where `+` adds and `~` removes, and dicts inside a section, such as `sweeper.params`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable
from textwrap import shorten
from typing import Any

from omegaconf import (
    MISSING,
    BooleanNode,
    DictConfig,
    IntegerNode,
    OmegaConf,
    StringNode,
    ValidationError,
    ValueNode,
    open_dict,
)
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from forge.compose import values
from forge.compose.engine import Library
from forge.compose.hydra_adapter import Override, OverrideType
from forge.compose.tree import LISTS, find_declaration, node_at, value_in_force, values_of
from forge.compose.unknown import Fault, Keys
from forge.config import schemas
from forge.config.bounds import length_fault
from forge.config.field import default_of
from forge.config.problems import (
    COMMAND_LINE,
    Problem,
    closest,
    did_you_mean,
    literal,
    shown,
    typed_override,
)

PARAMS = "sweeper.params"
LIST_ITEM = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^,])+""")
FIELDS = "__dataclass_fields__"


def set_value(tree: DictConfig, override: Override, library: Library) -> Problem | None:
    """Set a value in the tree, or return the problem of a misfit."""
    if schemas.in_open_dict(override.key_or_group):
        fault = _apply_to_free_dict(tree, override)
    elif entry := _entry_of(tree, override):
        fault = _apply_to_entry(*entry, override)
    else:
        fault = _apply_to_option(tree, override, library)
    return Problem(override.input_line or "", *fault, where=COMMAND_LINE) if fault else None


def _apply_to_option(tree: DictConfig, override: Override, library: Library) -> Fault | None:
    key = override.key_or_group
    value = "" if override.is_delete() else override.get_value_string()
    if fault_of_key := Keys(tree, library).unknown(key, value):
        return fault_of_key
    if override.is_delete():
        return "an option cannot be removed.", f"give it a value: {key}=..."
    if fault := _misused(override):
        return fault
    if override.is_add():
        return f"{key} exists; + is for what does not.", f"write {key}={value}"
    return _set_option(tree, key, override.value(), (override.input_line or "").partition("=")[2])


def _misused(override: Override) -> Fault | None:
    """The fault of several values, or of an @, for an option of a single value."""
    key = override.key_or_group
    if override.is_sweep_override():
        hint = "one value, or -m for a sweep"
        if typing.get_origin(schemas.declared_type(key)) in (list, tuple):
            hint += f"; {typed_override(key, f'[{override.get_value_string()}]')} for a list"
        instead = schemas.fact(key, "not_swept")
        message = f"{key} has several values, and this is not a sweep."
        return message, f"{hint}; {instead}" if instead else hint
    if override.package is not None:
        text = override.input_line or ""
        return "only a group takes @.", f"write {text.replace('@' + override.package, '', 1)}"
    return None


def _set_option(tree: DictConfig, key: str, value: Any, text: str) -> Fault | None:
    """Set an option to a value, or return the fault. text: the value as typed."""
    node = node_at(tree, key)
    option = find_declaration(tree, key)
    hint = option.hint if option else None
    takes_int = isinstance(node, IntegerNode) or int in typing.get_args(hint)
    if takes_int and isinstance(value, float) and value.is_integer():
        value = int(value)
    elif isinstance(node, StringNode) and (
        isinstance(value, int | float)
        or (isinstance(value, list) and schemas.fact(key, "verbatim"))
    ):
        value = text  # keep a name such as 1.50 or 12e4, or a token such as [SEP], as typed
    elif isinstance(value, list) and hint == list[str]:
        value = _as_typed(value, text, verbatim=bool(schemas.fact(key, "verbatim")))
    if fault := length_fault(key, value, hint):
        return fault, ""
    try:
        if isinstance(node, BooleanNode) and isinstance(value, int) and value not in (0, 1):
            raise ValidationError("OmegaConf takes any number for true")
        OmegaConf.update(tree, key, value, merge=True)
        return None
    except (OmegaConfBaseException, OverflowError) as error:
        if hint is not None:
            return _mistyped(key, text, value, hint, value_in_force(tree, key))
        if (group := key.rpartition(".")[2]) in schemas.INNER:
            return f"{key} is a section, which a group chooses.", f"+{group}@{key}={text}"
        advice = f"set its options one by one, like {values.option_below(key)}=..."
        if isinstance(value, dict):
            return f"'{text}' does not fit {key}: {_first_line(error)}.", advice
        return f"{key} is a section of options; '{text}' is not.", advice


def _as_typed(items: list[Any], text: str, *, verbatim: bool) -> list[Any]:
    """The items of a list of texts, with items like numbers as typed. verbatim: also items like
    lists or other values. text: of the whole list.
    """
    typed_items = [item.strip() for item in LIST_ITEM.findall(text.strip()[1:-1])]
    if len(typed_items) != len(items):
        return items
    return [
        as_typed
        if (verbatim and not isinstance(item, str))
        or (isinstance(item, int | float) and not isinstance(item, bool))
        else item
        for item, as_typed in zip(items, typed_items, strict=True)
    ]


def _mistyped(key: str, text: str, value: Any, hint: Any, now: Any = None) -> Fault:
    def write(meant: Any) -> str:
        return typed_override(key, (literal if isinstance(meant, list) else shown)(meant))

    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    quoted_text = text if is_quoted else f"'{text}'"
    return values.mistyped(key, quoted_text, value, hint, now, write)


def _entry_of(tree: DictConfig, override: Override) -> tuple[DictConfig, str] | None:
    """The dict in a section set by an override, and the name of the entry, dots included; no name
    for entries given as a dict.
    """
    key = override.key_or_group
    above = next((name for name in schemas.dicts() if f"{key}.".startswith(f"{name}.")), "")
    entries, name = node_at(tree, above), key.removeprefix(above).removeprefix(".")
    is_dict = not override.is_delete() and isinstance(override.value(), dict)
    return (entries, name) if above and entries is not None and (name or is_dict) else None


def _apply_to_entry(entries: DictConfig, name: str, override: Override) -> Fault | None:
    """Set or remove entries, or return the fault. Several values stay as typed, for the sweep."""
    key, text = override.key_or_group, (override.input_line or "").partition("=")[2]
    if override.is_delete():
        if name not in entries:
            return _no_entry(key.removesuffix(f".{name}"), name, entries, sign="~")
        with open_dict(entries):
            del entries[name]
        return None
    value: Any = text if override.is_sweep_override() else override.value()
    if name and isinstance(value, bool | int | float):
        value = text
    try:
        with open_dict(entries):
            for entry, entry_value in (value if not name else {name: value}).items():
                is_number = isinstance(entry_value, bool | int | float)
                as_text = is_number and entries._metadata.element_type is str
                entries[str(entry)] = str(entry_value) if as_text else entry_value
        return None
    except OmegaConfBaseException as error:
        if name:
            return _mistyped(key, text, value, schemas.declared_type(key))
        return f"it does not fit {key}: {_first_line(error)}.", schemas.dicts()[key]


def _no_entry(
    above: str, name: str, entries: DictConfig, *, sign: str = "", rest: str = ""
) -> Fault:
    """The fault of a missing entry. sign, rest: the typed text around the entry."""
    names = [str(entry) for entry in entries]
    near = [f"{sign}{above}.{entry}{rest}" for entry in closest(name, names)]
    content = f"it has {', '.join(names)}" if names else "it is empty"
    return f"{above} has no '{name}'.", did_you_mean(near) or content


def _apply_to_free_dict(tree: DictConfig, override: Override) -> Fault | None:
    """Add (`+`), change or remove (`~`) the entry of a key in `callbacks` or `trackers`."""
    if fault := _misused(override):
        return fault
    text, key = override.input_line or "", override.key_or_group
    root, *parts = key.split(".")
    if override.is_delete() and not parts:
        return f"{root} itself cannot be removed; its entries can.", f"~{root}.NAME"
    parent, node, above = tree, tree._get_node(root), root
    for part in parts:
        if not isinstance(node, DictConfig):
            return f"{above} is a value and has nothing below it.", f"write {above}=..."
        if part not in node:
            if override.is_delete():
                return _no_entry(above, part, node, sign="~")
            if override.type is OverrideType.CHANGE:
                suffix = text.removeprefix(f"{above}.{part}")
                message, near = _no_entry(above, part, node, rest=suffix)
                return message, f"{near}; +{text} adds it".replace("?;", "?")
            break
        parent, node, above = node, node._get_node(part), f"{above}.{part}"
    else:
        if parts and override.type is OverrideType.ADD:
            return f"{key} exists; + is for what does not.", f"write {text.lstrip('+')}"
    try:
        if override.is_delete():
            with open_dict(parent):
                del parent[parts[-1]]
        else:
            OmegaConf.update(tree, key, override.value(), merge=True, force_add=True)
        return None
    except OmegaConfBaseException as error:
        above = next(name for name in schemas.open_dicts() if f"{key}.".startswith(f"{name}."))
        return f"this does not fit {key}: {_first_line(error)}.", schemas.fact(above, "help")


def lists_as_values(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Turn lists of files in `sweeper.params` into texts, as typed for a sweep, in place; a dict in
    `sweeper.params` is taken out, and is a problem.
    """
    params = tree.sweeper._get_node("params")
    problems = []
    for key in list(params) if isinstance(params, DictConfig) and params else []:
        value: Any = params._get_node(key)
        if isinstance(value, LISTS):
            items: Any = OmegaConf.to_container(value, resolve=False)
            texts = (item if isinstance(item, str) else literal(item) for item in items)
            params[key] = ",".join(texts)
        elif isinstance(value, DictConfig):
            with open_dict(params):
                del params[key]
            message, hint = (
                f"{PARAMS} has dotted keys, with nothing below them.",
                f"{key}.NAME: A,B",
            )
            name = f"{PARAMS}.{key}"
            problems.append(Problem(name, message, hint, where=written_at(name)))
    return problems


def open_ends(tree: DictConfig, written_at: Callable[[str], str]) -> list[Problem]:
    """Options without a value: missing, or an interpolation that fails.

    Each gets its default, for checks of the other options; an entry without a default is removed.
    """
    problems = []
    for key, section, name in list(values_of(tree)):
        node = section._get_node(name)
        if isinstance(node, ValueNode) and not node._is_missing() and not node._is_interpolation():
            continue
        try:
            value = section[name]
            if isinstance(value, LISTS):
                list(value)
            continue
        except MissingMandatoryValue:
            fault = "a value is missing.", f"give one: {key}=..."
        except OmegaConfBaseException as error:
            cause = shorten(_first_line(error), 200)
            fault = f"its interpolation fails: {cause}.", "name an existing key in ${...}"
        problems.append(Problem(key, *fault, where=written_at(key)))
        schema: Any = OmegaConf.get_type(section)
        if dataclasses.is_dataclass(schema):
            declared_in = [base for base in schema.__mro__ if name in vars(base).get(FIELDS, {})]  # type: ignore[union-attr]
            defaults = [default_of(vars(base)[FIELDS][name]) for base in declared_in]
            section[name] = next((default for default in defaults if default != MISSING), None)
        else:
            with open_dict(section):
                del section[name]
    return problems


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
