"""The config of a run as flat keys, and what tells runs and arms apart by it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from forge.config import schemas
from forge.config.problems import shown
from forge.rundir.stored import newest, read_yaml

SEED = "seed"
APART = ("run", "launch", "sweep", "sweeper", "metrics", "profiling")
"""Sections that say where and how a run was started and watched: no difference between arms."""
TARGET, TYPE = "_target_", "_type_"
WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
DECIMAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?", re.ASCII)
Settings = dict[str, str]


def read(run_dir: Path) -> dict[str, Any]:
    """The config in force as plain data; no class that it names is imported. Raises ValueError,
    OSError.
    """
    try:
        plain = read_yaml(newest(run_dir))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(
            f"{newest(run_dir)} cannot be read: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(plain, dict):
        raise ValueError(f"{newest(run_dir)} cannot be read: it is empty or damaged")
    return plain


def flat(plain: Mapping[str, Any]) -> Settings:
    """Every option by its dotted key, written as on a command line."""
    return {key: shown(value) for key, value in options(plain).items()}


def options(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every option by its dotted key; a group's variant is the last word of its target, under the
    group's name.
    """
    found: dict[str, Any] = {}
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if key == TARGET:
            found[prefix.rstrip(".")] = str(value).rpartition(".")[2]
        elif isinstance(value, Mapping) and value:
            found |= options(value, f"{name}.")
        elif key != TYPE:
            found[name] = value
    return found


def number_text(value: object) -> str | None:
    """A number, or a text that is one, in its shortest decimal form: 0.001, 1e-5, 4; None for all
    else.
    """
    if isinstance(value, str):
        value = (
            float(value)
            if DECIMAL.fullmatch(value)
            else int(value)
            if WHOLE.fullmatch(value)
            else None
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return re.sub(r"(?<=e)(-?)[+]?0*(?=\d)", r"\1", str(value)).removesuffix(".0")


def identity(settings: Settings) -> tuple[tuple[str, str], ...]:
    """What a run is apart from its seed: the settings that may not change when it goes on."""
    return tuple(
        sorted((key, value) for key, value in settings.items() if key != SEED and not is_free(key))
    )


def differing(all_settings: Iterable[Settings], *, seeds: bool = False) -> list[str]:
    """The keys, apart from APART, that not all have with the same value. seeds: the seed among
    them.

    Where a group's variants differ, an option that only one of them has counts when its own values
    do.
    """
    several = list(all_settings)
    keys = dict.fromkeys(
        key for settings in several for key in settings if key.partition(".")[0] not in APART
    )
    values = {
        key: {settings.get(key) for settings in several} for key in keys if seeds or key != SEED
    }
    return [
        key
        for key in values
        if len(values[key]) > (2 if None in values[key] and _of_a_variant(key, values) else 1)
    ]


def short(keys: Sequence[str]) -> dict[str, str]:
    """Each key by its last word, or as many as tell it from the others."""
    names: dict[str, str] = {}
    for key in keys:
        words = key.split(".")
        ends = (".".join(words[-n:]) for n in range(1, len(words) + 1))
        names[key] = next(
            (end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1),
            key,
        )
    return names


def _of_a_variant(key: str, values: Mapping[str, set[str | None]]) -> bool:
    """Whether the group of an option is another one for some."""
    words = key.split(".")
    return any(len(values.get(".".join(words[:n]), ())) > 1 for n in range(1, len(words)))


def is_free(key: str) -> bool:
    """Whether an option may change when a run goes on."""
    group = key.partition(".")[0]
    return (
        key in _free_keys()
        or group in {*APART, *schemas.free_dicts()}
        or (key == group and group in _free_groups())
    )


@functools.cache
def _free_groups() -> frozenset[str]:
    return frozenset(
        group
        for group in schemas.sections()
        if all(schema.all_free for schema in schemas.variants(group).values())
    )


@functools.cache
def _free_keys() -> frozenset[str]:
    every = [
        (group, schema)
        for group in schemas.sections()
        for schema in schemas.variants(group).values()
    ]
    options = [
        (f"{group}.{name}", schema, field)
        for group, schema in every
        for name, _, field in schemas.options_of(schema)
    ]
    return frozenset(
        key for key, schema, field in options if schema.all_free or field.metadata.get("free")
    )
