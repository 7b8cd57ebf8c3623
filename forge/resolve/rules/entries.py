"""What is wrong with entries that say what is read: evaluation sets, sources of a mixture."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from forge.config.bounds import fits, kind
from forge.config.data.reading import KIND, NAME, TARGET, kinds, options_of, schema_of
from forge.config.data.text import Data, Files, unstreamed
from forge.config.field import types_of
from forge.config.places import address_fault
from forge.config.problems import closest, did_you_mean
from forge.config.rule import Findings
from forge.resolve.rules.run import path_fault, unstorable


def entry_faults(
    data: Data, above: str, name: str, entry: Any, *, more: Collection[str] = ()
) -> Findings:
    """above: the key of the dict that has the entry. more: keys beside the options of data."""
    key = f"{above}.{name}"
    if not NAME.fullmatch(name):
        what = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
        yield above, what, "another name"
    elif not isinstance(entry, dict):
        what = "it has options of data, and this is a value."
        yield f"{key}={entry}", what, f"leave it out; +{key}.path=my.txt names a text"
    elif TARGET in entry:
        if other := unstorable(entry, key):
            fix = f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"
            yield key, f"{other}, which no file can keep.", fix
    elif (schema := schema_of(data, entry)) is None:
        what = f"data has no kind {entry[KIND]} that this could be read as."
        yield f"{key}.{KIND}", what, meant(str(entry[KIND]), kinds(), f"{key}.{KIND}=")
    else:
        said = {option: value for option, value in entry.items() if option not in (KIND, *more)}
        yield from _option_faults(key, said, schema, more)
        known = options_of(schema).keys()
        if issubclass(schema, Files) and said.keys() <= known and not said.get("path"):
            yield key, "it has no path of what is read.", f"+{key}.path=my.jsonl"


def _option_faults(
    key: str, said: dict[str, Any], schema: type[Data], more: Collection[str]
) -> Findings:
    hints, known = types_of(schema), options_of(schema)
    for option, value in said.items():
        at = f"{key}.{option}"
        if option not in known:
            what = f"what is read as {schema.__name__} has no option '{option}'."
            if fault := unstreamed(schema, option):
                yield at, f"{what[:-1]}: {fault[0]}", fault[1]
                continue
            near = did_you_mean([f"+{key}.{one}" for one in closest(option, [*known, *more])])
            yield at, what, near or f"it has {', '.join([*known, *more]) or 'none'}"
        elif not fits(value, hints[option]):
            yield at, f"it must be {kind(hints[option])}.", "another value"
        elif (
            value
            and known[option].metadata.get("path")
            and (fault := address_fault(f"{at}=", value) or path_fault(value))
        ):
            yield at, *fault


def meant(value: str, known: Collection[str], assign: str) -> str:
    """What to type in place of a value."""
    near = did_you_mean([assign + other for other in closest(value, known)])
    return near or f"one of {', '.join(assign + other for other in known)}"
