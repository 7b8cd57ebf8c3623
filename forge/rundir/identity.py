"""The identity of a run: the options that are not free. Another value of one makes another run."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from forge.config import schemas
from forge.config.field import Section, thaw_value, types_of
from forge.config.root import Config


def identity(config: Config) -> dict[str, Any]:
    """The value of every option that is not free, by key; the variant of a section under
    `_type_`.
    """
    return dict(_walk(config, ""))


def hash_of(config: Config, more: Mapping[str, str] | None = None) -> str:
    """32 hexadecimal digits, equal for equal identities.

    more: values that tell runs apart beside the identity, by key.
    """
    content = json.dumps([identity(config), dict(more or {})], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@functools.cache
def is_free(key: str) -> bool:
    """Whether an option, or every option of a group, has no part in the identity."""
    key = key.lstrip("+~").replace("/", ".")
    free_flags = [
        schema.all_free or field.metadata.get("free", False)
        for name, _, schema, field in schemas.walk_options()
        if f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.")
    ]
    return key.partition(".")[0] in schemas.free_dicts() or (bool(free_flags) and all(free_flags))


def _walk(section: Section, prefix: str) -> Iterator[tuple[str, Any]]:
    declared = types_of(type(section))
    for field in dataclasses.fields(section):
        key, value = f"{prefix}{field.name}", getattr(section, field.name)
        if field.metadata.get("free", False):
            continue
        if field.name == "_target_" and section.has_own_target:
            continue
        if not isinstance(value, Section):
            yield key, thaw_value(value)
        elif not value.all_free:
            kind = type(value)
            if kind is not declared[field.name]:
                yield f"{key}._type_", kind.type_name()
            yield from _walk(value, f"{key}.")
