"""What a run is, apart from how and where it runs: its options that are not free."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from forge.config.field import Section, thaw_value, types_of
from forge.config.root import Config

LENGTH = 16  # bytes of a hash


def identity(config: Config) -> dict[str, Any]:
    """Every option of a resolved config that makes another run when it changes, by key; which
    variant a section is, under `_type_`.
    """
    return dict(_walk(config, ""))


def hash_of(config: Config, more: Mapping[str, str] | None = None) -> str:
    """A text of 32 signs that is equal for equal identities. more: what tells runs apart that have
    the same, by key.
    """
    content = json.dumps([identity(config), dict(more or {})], sort_keys=True, default=str)
    return hashlib.blake2b(content.encode(), digest_size=LENGTH).hexdigest()


def is_free(config: Config, key: str) -> bool:
    """Whether a key, or group, has no part in the identity."""
    section: Any = config
    for part in key.lstrip("+~").replace("/", ".").split("."):
        if not isinstance(section, Section):
            return True  # an entry of a free dict
        field = type(section).__dataclass_fields__.get(part)
        if field is None or field.metadata.get("free", False):
            return field is not None
        section = getattr(section, part)
        if isinstance(section, Section) and section.all_free:
            return True
    return False


def _walk(section: Section, prefix: str) -> Iterator[tuple[str, Any]]:
    if section.all_free:
        return
    declared = types_of(type(section))
    for field in dataclasses.fields(section):
        if field.metadata.get("free", False):
            continue
        value = getattr(section, field.name)
        if not isinstance(value, Section):
            yield f"{prefix}{field.name}", thaw_value(value)
            continue
        if type(value) is not declared[field.name] and not value.all_free:
            yield (
                f"{prefix}{field.name}._type_",
                f"{type(value).__module__}.{type(value).__qualname__}",
            )
        yield from _walk(value, f"{prefix}{field.name}.")
