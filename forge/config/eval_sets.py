"""The sets of `eval.sets`: the `data` section of each, and the names of what is evaluated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from forge.config.data import Data, Text
from forge.config.root import Config
from forge.config.schemas import SCHEMAS

KIND = "data"  # what a set says of how it is read, beside options of that choice
NAME = re.compile(r"[\w-]+")
WHOLE = 1.0  # the share of a set that is held out of training


def kinds() -> dict[str, type[Data]]:
    """forge's own choices of the `data` group: a worker knows no others by name."""
    found: Any = SCHEMAS["data"].items()
    return {name: schema for name, schema in found if schema.__module__.startswith("forge.")}


def schema_of(config: Config, entry: Mapping[str, Any]) -> type[Data] | None:
    """What a set is read as: what it says, else what the run reads, else text where that has no
    options; None for what is no choice.
    """
    if KIND in entry:
        return kinds().get(entry[KIND])
    own = type(config.data)
    return own if options_of(own) else Text


def options_of(schema: type[Data]) -> dict[str, dataclasses.Field]:
    """The options that a set may give: those that say what is read and how."""
    fields = {field.name: field for field in dataclasses.fields(schema)}
    return {name: fields[name] for name in fields if name not in Data.__dataclass_fields__}


def data_of(config: Config, name: str) -> Data:
    """The section of a set, all of which is held out: the run's where it is of the same kind, with
    the options of the set.
    """
    entry = dict(config.eval.sets[name])
    schema = schema_of(config, entry)
    assert schema is not None
    same = config.data if type(config.data) is schema else schema(cache_dir=config.data.cache_dir)
    entry.pop(KIND, None)
    return dataclasses.replace(same, val_fraction=WHOLE, **entry)


def metric_names(config: Config) -> Iterator[str]:
    """What an evaluation reports: metrics of the validation split, and of sets as SET/METRIC."""
    for name in ("", *config.eval.sets):
        yield from (f"{name}/{metric}".lstrip("/") for metric in config.objective.metrics)
