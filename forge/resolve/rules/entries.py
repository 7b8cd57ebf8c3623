"""Faults of entries that name texts: evaluation sets, sources of a mixture."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from forge.config.bounds import fits, type_in_words
from forge.config.data.reading import KIND, NAME, TARGET, corpus_kinds, entry_options, schema_of
from forge.config.data.text import Data, Files, unstreamed
from forge.config.field import types_of
from forge.config.places import address_fault
from forge.config.problems import closest, did_you_mean
from forge.config.rule import Findings
from forge.resolve.rules.run import path_fault, unstorable


def entry_faults(
    data: Data, above: str, name: str, entry: Any, *, more: Collection[str] = ()
) -> Findings:
    """Find the faults of an entry.

    above: key of the dict with the entry. more: keys beside the options of data.
    """
    key = f"{above}.{name}"
    if not NAME.fullmatch(name):
        message = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
        yield above, message, "another name"
    elif not isinstance(entry, dict):
        message = "it has options of data, and this is a value."
        yield f"{key}={entry}", message, f"leave it out; +{key}.path=my.txt names a text"
    elif TARGET in entry:
        if other := unstorable(entry, key):
            hint = f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"
            yield key, f"{other}, which no file can keep.", hint
    elif (schema := schema_of(data, entry)) is None:
        message = f"data has no kind {entry[KIND]} that this could be read as."
        yield f"{key}.{KIND}", message, suggest(str(entry[KIND]), corpus_kinds(), f"{key}.{KIND}=")
    else:
        options = {option: value for option, value in entry.items() if option not in (KIND, *more)}
        yield from _option_faults(key, options, schema, more)
        option_names = entry_options(schema).keys()
        if issubclass(schema, Files) and options.keys() <= option_names and not options.get("path"):
            yield key, "it has no path of what is read.", f"+{key}.path=my.jsonl"


def _option_faults(
    key: str, said: dict[str, Any], schema: type[Data], more: Collection[str]
) -> Findings:
    hints, fields = types_of(schema), entry_options(schema)
    for option, value in said.items():
        option_key = f"{key}.{option}"
        if option not in fields:
            message = f"what is read as {schema.__name__} has no option '{option}'."
            if fault := unstreamed(schema, option):
                yield option_key, f"{message[:-1]}: {fault[0]}", fault[1]
                continue
            near = did_you_mean([f"+{key}.{name}" for name in closest(option, [*fields, *more])])
            yield option_key, message, near or f"it has {', '.join([*fields, *more]) or 'none'}"
        elif not fits(value, hints[option]):
            yield option_key, f"it must be {type_in_words(hints[option])}.", "another value"
        elif (
            value
            and fields[option].metadata.get("path")
            and (fault := address_fault(f"{option_key}=", value) or path_fault(value))
        ):
            yield option_key, *fault


def suggest(value: str, known: Collection[str], assign: str) -> str:
    """Advise an override in place of a wrong value: the closest known values, else every one."""
    near = did_you_mean([assign + choice for choice in closest(value, known)])
    return near or f"one of {', '.join(assign + choice for choice in known)}"
