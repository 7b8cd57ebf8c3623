"""Differences between the config of a run and the config of its continuation, and the permitted
ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forge.config.field import Section, freeze_value
from forge.config.horizon import SCHEDULE, follows
from forge.config.problems import literal

PLACES = ("run.dir", "run.root", "run.name", "sweep", "sweeper")
"""Keys of the run's folder and its neighbours, no part of the run's identity."""

ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A key with the value before and after. free: permitted without run.allow_change."""

    key: str
    before: Any
    after: Any
    free: bool


def changes(old: Any, new: Any) -> list[Change]:
    """List every difference between two resolved configs; another variant of a section is one
    change.

    Free are options marked free, a larger train.max_steps, and a schedule that follows
    train.max_steps.
    """
    differences = [change for change in _walk(old, new) if not permitted(change.key, PLACES)]
    return [
        dataclasses.replace(change, free=change.free or _follows_or_grows(change, old, new))
        for change in differences
    ]


def permitted(key: str, allowed: Sequence[str]) -> bool:
    """Whether run.allow_change names the key or a section above it."""
    return any(f"{key}.".startswith(f"{name}.") for name in allowed)


def assignments(old: Section, new: Section) -> list[str]:
    """`key=value` of every option of `new` with another value than in `old`."""
    keys = [change.key for change in _walk(old, new)]
    values = [(key, functools.reduce(getattr, key.split("."), new)) for key in keys]
    return [f"{key}={literal(value)}" for key, value in values if not isinstance(value, Section)]


def _walk(old: Section, new: Section, prefix: str = "") -> Iterator[Change]:
    fields = {field.name: field for section in (new, old) for field in dataclasses.fields(section)}
    for field in fields.values():
        key, free = f"{prefix}{field.name}", new.all_free or field.metadata.get("free", False)
        old_value, new_value = (
            freeze_value(getattr(section, field.name, ABSENT)) for section in (old, new)
        )
        if not (isinstance(old_value, Section) and isinstance(new_value, Section)):
            if old_value != new_value:
                yield Change(key=key, before=old_value, after=new_value, free=free)
        elif old_value.variant == new_value.variant:
            yield from _walk(old_value, new_value, f"{key}.")
        else:
            free = old_value.all_free and new_value.all_free
            yield Change(key=key, before=_variant(old_value), after=_variant(new_value), free=free)


def _follows_or_grows(change: Change, old: Any, new: Any) -> bool:
    if change.key == "train.max_steps":
        return change.after > change.before
    moved = new.train.max_steps != old.train.max_steps
    is_of_schedule = change.key in SCHEDULE
    return (
        moved
        and is_of_schedule
        and all(
            follows(config.scheduler, change.key, config.train.max_steps) for config in (old, new)
        )
    )


def _variant(section: Section) -> str:
    return getattr(section, "_target_", type(section).__qualname__)
