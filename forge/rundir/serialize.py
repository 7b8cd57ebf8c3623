"""A resolved config as plain data and back: what a run directory holds and a worker reads."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from forge.config import packages
from forge.config.field import Section, thaw_value, types_of
from forge.config.root import Config
from forge.config.target import trusted
from forge.rundir.stored import newest, read_yaml

TYPE = "_type_"
S = TypeVar("S", bound=Section)


def to_plain(section: Section) -> dict[str, Any]:
    """Nested dicts, lists and scalars. A section whose class is a variant says so under `_type_`."""
    hints = types_of(type(section))
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, Section):
            nested = to_plain(value)
            if type(value) is not hints[field.name]:
                nested = {TYPE: f"{type(value).__module__}.{type(value).__qualname__}", **nested}
            value = nested
        elif isinstance(value, tuple | list | dict):
            value = thaw_value(value)
        plain[field.name] = value
    return plain


def from_plain(schema: type[S], plain: dict[str, Any], *, trust: tuple[str, ...] = ()) -> S:
    """The section that `to_plain` wrote, not yet frozen. Raises ValueError for a class that it may
    not be of.
    """
    hints = types_of(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        value, hint = plain[field.name], hints[field.name]
        if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Section):
            name = value.get(TYPE)
            value = from_plain(_schema(name, hint, trust) if name else hint, value, trust=trust)
        values[field.name] = value
    return schema(**values)


def save(config: Config, path: Path) -> None:
    """Write a config as YAML; a reader sees all of it or none."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True))
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def load(path: Path, *, trust: Sequence[str]) -> Config:
    """Read a config that `save` wrote, frozen; run.trust is `trust`, whatever the file says.

    Raises ValueError for a class that a section may not be of, and TypeError for what is no config.
    """
    plain = read_yaml(path)
    if not isinstance(plain, dict) or not isinstance(plain.get("run"), dict):
        raise TypeError("it is empty or damaged")
    plain["run"]["trust"] = list(trust)
    config = from_plain(Config, plain, trust=tuple(trust))
    config.freeze()
    return config


def load_own(run_dir: Path) -> Config:
    """The config in force of a run directory that was made, and so trusted, by whoever starts this
    process.
    """
    file = newest(run_dir)
    return load(file, trust=stored_trust(file))


def stored_trust(file: Path) -> tuple[str, ...]:
    """The run.trust in a file that `save` wrote, whoever wrote it: nothing to build by, unless this
    process was started to.
    """
    return tuple(read_yaml(file)["run"]["trust"])


def _schema(name: str, base: type[Section], trust: tuple[str, ...]) -> type[Section]:
    """The class that a file names for a section. Forge's own stand beside the base of their group;
    others need trust.
    """
    module, _, attribute = name.rpartition(".")
    if trusted(name, trust):
        try:
            schema = getattr(importlib.import_module(module), attribute, None)
        except Exception as error:
            raise ValueError(
                "its schema {} cannot be used: {} -> {}".format(
                    name, *packages.explain(module, error)
                )
            ) from error
    elif name.startswith(("forge.", "torch.")):
        schema = (
            getattr(sys.modules[base.__module__], attribute, None)
            if module == base.__module__
            else None
        )
    else:
        package = name.partition(".")[0]
        how = f"run.trust=[{package}.], or --trust {package}. where a run is only read"
        raise ValueError(f"its schema {name} is not under a trusted prefix; if you trust it: {how}")
    if not (isinstance(schema, type) and issubclass(schema, base)):
        raise ValueError(f"the schema {name} is no {base.__module__}.{base.__qualname__}")
    return schema
