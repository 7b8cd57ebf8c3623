"""What is read, as an entry of a dict says it: options of one kind of data, by which texts to
evaluate and sources of a mixture are named.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from forge.config.data.text import BORDERS, Data, Text
from forge.config.field import variants_of

KIND = "data"  # what an entry says of how it is read, beside options of that kind
TARGET = "_target_"
WEIGHT = "weight"
NAME = re.compile(r"[\w-]+")
COMMON = tuple(field.name for field in dataclasses.fields(Data) if field.name != "_target_")


@dataclasses.dataclass(kw_only=True)
class Own(Data):
    """What a class or function of the user's reads, which gets the other keys as keywords."""

    entry: dict[str, Any] = dataclasses.field(default_factory=dict)
    place: str = "data"

    @property
    def reader(self) -> dict[str, Any]:
        return self.entry


def kinds() -> dict[str, type[Data]]:
    """forge's own kinds of one corpus: a worker knows no others by name."""
    found = (schema for schema in variants_of(Data) if schema.__module__.startswith("forge."))
    return {schema.schema_name: schema for schema in found if not schema.mixes}


def schema_of(data: Data, entry: Mapping[str, Any]) -> type[Data] | None:
    """What an entry is read as: what it says, else what the run reads, else text where that has no
    options; None for what is no kind of data.
    """
    if TARGET in entry:
        return Own
    if KIND in entry:
        return kinds().get(entry[KIND])
    own = type(data)
    says_what = options_of(own).keys() - set(BORDERS)
    return own if says_what and not own.mixes else Text


def options_of(schema: type[Data]) -> dict[str, dataclasses.Field]:
    """The options that an entry may give: those that say what is read and how."""
    fields = {field.name: field for field in dataclasses.fields(schema)}
    return {name: fields[name] for name in fields if name not in Data.__dataclass_fields__}


def read_as(data: Data, entry: Mapping[str, Any], place: str, **more: Any) -> Data:
    """The section of an entry, which is at `place` of the config: the run's where it is of the same
    kind, with the options of the entry, and `more`.
    """
    schema = schema_of(data, entry)
    assert schema is not None
    same = data
    if type(data) is not schema:
        same = schema(**{name: getattr(data, name) for name in COMMON})
    own = {name: value for name, value in entry.items() if name not in (KIND, WEIGHT)}
    if schema is Own:
        keywords = {name: value for name, value in entry.items() if name != WEIGHT}
        own = {"entry": keywords, "place": place}
    return dataclasses.replace(same, **(own | more))


def read_whole(data: Data, entry: Mapping[str, Any], place: str) -> Data:
    """The same, all of which is held out of training."""
    return read_as(data, entry, place, val_fraction=1.0, val_documents=0, validation={})
