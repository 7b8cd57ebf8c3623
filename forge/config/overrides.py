"""Applying `key=value` overrides to a composed tree, with a problem for each that does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import BooleanNode, DictConfig, FloatNode, IntegerNode, ListConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException

from forge.config import schemas, seeds
from forge.config.errors import Problem, closest, did_you_mean
from forge.config.field import Section

KINDS = {IntegerNode: "an integer", FloatNode: "a number", BooleanNode: "true or false", StringNode: "a text"}
COMMAND_LINE = "command line"


def apply(tree: DictConfig, override: Override, groups: Iterable[str]) -> Problem | None:
    """Set one value in the tree, or say why it does not fit."""
    text, key = override.input_line or "", override.key_or_group
    if override.is_sweep_override():
        values = text.split("=", 1)[1]
        return _problem(
            text, f"{key} has several values, and this is not a sweep.", f"one value; {key}=[{values}] for a list; quotes for a text"
        )
    if override.is_delete():
        return _problem(text, "an option cannot be removed.", f"give it a value: {key}=...")
    fault = unknown(tree, key, groups)
    if fault is not None:
        wanted = f"{fault.meant[0]}={override.get_value_string()}" if fault.meant else ""
        fix = did_you_mean([wanted, *fault.meant[1:]]) if wanted else fault.hint
        return _problem(text, fault.what, fix)
    if override.is_add():
        return _problem(text, f"{key} exists; + is for what does not.", f"write {key}={override.get_value_string()}")
    return _assign(tree, key, override.value(), text)


def _assign(tree: DictConfig, key: str, value: Any, text: str) -> Problem | None:
    parent, _, name = key.rpartition(".")
    holder = OmegaConf.select(tree, parent) if parent else tree
    node = holder._get_node(name)
    if OmegaConf.is_dict(node) and not isinstance(value, dict):
        return _problem(text, f"{key} is a section with options of its own.", f"set one of them, such as {key}.{next(iter(node))}=...")
    if isinstance(node, IntegerNode) and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        OmegaConf.update(tree, key, value, merge=True)
    except OmegaConfBaseException as error:
        kind = KINDS.get(type(node), "a list" if isinstance(node, ListConfig) else "a legal value")
        shown = text.split("=", 1)[1]
        if value is None:
            return _problem(text, f"{key} cannot be null; it is {kind}.", "")
        if isinstance(value, dict | list):
            return _problem(text, f"'{shown}' does not fit {key}: {str(error).splitlines()[0]}", "")
        return _problem(text, f"{key} is {kind}; '{shown}' is not.", "")
    return None


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A key that does not exist: why, what was probably meant, and a hint where nothing close exists."""

    what: str
    meant: list[str]
    hint: str = ""


def unknown(tree: DictConfig, key: str, groups: Iterable[str]) -> Unknown | None:
    """None when `key` names an option or section of the tree; else what is wrong with it."""
    node: Any = tree
    parts = key.replace("/", ".").split(".")
    for depth, part in enumerate(parts):
        above = ".".join(parts[:depth])
        if not OmegaConf.is_dict(node):
            return Unknown(f"{above} is a value and has nothing below it.", [above])
        if part not in node:
            return _missing(tree, node, key, above, part, groups)
        node = node._get_node(part)
    return None


def _missing(tree: DictConfig, node: DictConfig, key: str, above: str, part: str, groups: Iterable[str]) -> Unknown:
    rest = key[len(above) + len(part) + 1 :] if above else key[len(part) :]
    if not above:
        names = [*groups, *(str(k) for k in tree)]
        meant = [name + rest for name in closest(part, names) if not rest or unknown(tree, name + rest, groups) is None]
        meant = meant or closest(part, names)
        if not meant:
            meant = [k for k in option_keys(tree) if k.rpartition(".")[2] == key.rpartition(".")[2]]
        return Unknown(f"there is no group or option '{part}'.", meant, seeds.suggestion(key) or "python -m forge.train --help lists them")
    owner = OmegaConf.get_type(node)
    name = getattr(owner, "__name__", above)
    meant = [f"{above}.{n}" for n in closest(part, (str(k) for k in node))]
    other = _elsewhere(above, part)
    seed = seeds.suggestion(key)
    if not meant:
        meant = [k for k in option_keys(tree) if k.endswith(f".{part}")][:3]
    what = f"{name} has no option '{part}'."
    if other:
        return Unknown(f"{what} {other}", meant)
    return Unknown(what, meant, seed or f"its options: {', '.join(str(k) for k in node if not str(k).startswith('_'))}")


def _elsewhere(group: str, part: str) -> str:
    """Which other variants of the group have this option."""
    owners = [name for name, schema in schemas.SCHEMAS.get(group, {}).items() if part in (f.name for f in dataclasses.fields(schema))]
    return f"It belongs to {', '.join(f'{group}={name}' for name in owners)}." if owners else ""


def option_keys(tree: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all values in the tree."""
    for name in tree:
        node = tree._get_node(name)
        if OmegaConf.is_dict(node):
            yield from option_keys(node, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            yield f"{prefix}{name}"


def undeclared(tree: DictConfig, prefix: str = "") -> Iterator[str]:
    """Keys that a file added to a section and that its dataclass does not declare."""
    declared = OmegaConf.get_type(tree)
    fields = {f.name for f in dataclasses.fields(declared)} if isinstance(declared, type) and issubclass(declared, Section) else None
    for name in tree:
        node = tree._get_node(name)
        if fields is not None and name not in fields:
            yield f"{prefix}{name}"
        elif OmegaConf.is_dict(node):
            yield from undeclared(node, f"{prefix}{name}.")  # type: ignore[arg-type]


def _problem(text: str, what: str, fix: str) -> Problem:
    return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)
