"""Entries that name data in a dict: texts to evaluate and sources of a mixture, each with the
options of one kind of data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from forge.config.data.text import BORDERS, Data, Text
from forge.config.field import variants_of

KIND = "data"  # the key of an entry's kind, beside options of the kind
TARGET = "_target_"
WEIGHT = "weight"
NAME = re.compile(r"[\w-]+")
COMMON = tuple(field.name for field in dataclasses.fields(Data) if field.name != "_target_")


@dataclasses.dataclass(kw_only=True)
class Own(Data):
    """Data read by a class or function of the user's, called with the entry's other keys as
    keywords.
    """

    entry: dict[str, Any] = dataclasses.field(default_factory=dict)
    place: str = "data"

    @property
    def reader(self) -> dict[str, Any]:
        return self.entry


def corpus_kinds() -> dict[str, type[Data]]:
    """forge's own kinds of single corpora: a worker knows no others by name."""
    schemas = (schema for schema in variants_of(Data) if schema.__module__.startswith("forge."))
    return {schema.schema_name: schema for schema in schemas if not schema.mixes}


def schema_of(data: Data, entry: Mapping[str, Any]) -> type[Data] | None:
    """The schema of an entry: the kind it states, else the run's kind, else text where the run's
    kind has no options; None for an unknown kind.
    """
    if TARGET in entry:
        return Own
    if KIND in entry:
        return corpus_kinds().get(entry[KIND])
    run_schema = type(data)
    says_what = entry_options(run_schema).keys() - set(BORDERS)
    return run_schema if says_what and not run_schema.mixes else Text


def entry_options(schema: type[Data]) -> dict[str, dataclasses.Field]:
    """The options an entry may give: source and format."""
    fields = {field.name: field for field in dataclasses.fields(schema)}
    return {name: fields[name] for name in fields if name not in Data.__dataclass_fields__}


def read_as(data: Data, entry: Mapping[str, Any], key: str, **extra_options: Any) -> Data:
    """Make the section of an entry, found at `key` of the config: the run's section where the kind
    is the same, with the entry's and the extra options.
    """
    schema = schema_of(data, entry)
    assert schema is not None
    base = data
    if type(data) is not schema:
        base = schema(**{name: getattr(data, name) for name in COMMON})
    options = {name: value for name, value in entry.items() if name not in (KIND, WEIGHT)}
    if schema is Own:
        keywords = {name: value for name, value in entry.items() if name != WEIGHT}
        options = {"entry": keywords, "place": key}
    return dataclasses.replace(base, **(options | extra_options))


def held_out_section(data: Data, entry: Mapping[str, Any], key: str) -> Data:
    """Make the section of an entry, held out of training in full."""
    return read_as(data, entry, key, val_fraction=1.0, val_documents=0, validation={})
