"""A resolved config as plain data and back: what a run directory holds and a worker reads."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from forge.config.field import Section
from forge.config.root import Config
from forge.config.target import allowed

TYPE = "_type_"
S = TypeVar("S", bound=Section)


def to_plain(section: Section) -> dict[str, Any]:
    """Nested dicts, lists and scalars. A section whose class is a variant says so under `_type_`."""
    hints = typing.get_type_hints(type(section))
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Section):
            nested = to_plain(value)
            if type(value) is not hints[field.name]:
                nested = {TYPE: f"{type(value).__module__}.{type(value).__qualname__}", **nested}
            value = nested
        elif isinstance(value, tuple | list):
            value = list(value)
        plain[field.name] = value
    return plain


def from_plain(schema: type[S], plain: dict[str, Any], *, trust: tuple[str, ...] = ()) -> S:
    """The section that `to_plain` wrote, not yet frozen. Raises ValueError for a class outside the allow-list."""
    hints = typing.get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        value, hint = plain[field.name], hints[field.name]
        if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Section):
            name = value.get(TYPE)
            value = from_plain(_schema(name, trust) if name else hint, value, trust=trust)
        values[field.name] = value
    return schema(**values)


def save(config: Config, path: Path) -> None:
    """Write a config as YAML."""
    path.write_text(yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True), encoding="utf-8")


def load(path: Path) -> Config:
    """Read a config that `save` wrote, frozen."""
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = from_plain(Config, plain, trust=tuple(plain["run"]["trust"]))
    config.freeze()
    return config


def _schema(name: str, trust: tuple[str, ...]) -> type[Section]:
    if not allowed(name, trust):
        raise ValueError(f"the schema {name} is not under a trusted prefix; run.trust lists them")
    module, _, attribute = name.rpartition(".")
    schema = getattr(importlib.import_module(module), attribute)
    if not (isinstance(schema, type) and issubclass(schema, Section)):
        raise ValueError(f"the schema {name} is not a section")
    return schema
