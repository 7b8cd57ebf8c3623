"""What differs between the config of a run and the one it is to go on with, and which of it may."""

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
"""Where the run lies, and among which others, which is no part of what it is."""

ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One key with its value before and after; `free`: it may change without run.allow_change."""

    key: str
    before: Any
    after: Any
    free: bool


def changes(before: Any, after: Any) -> list[Change]:
    """Every difference between two resolved configs; another variant of a section is one change.

    Free are options marked so, a larger train.max_steps, and a schedule that follows it.
    """
    found = [change for change in _walk(before, after) if not permitted(change.key, PLACES)]
    return [
        dataclasses.replace(change, free=change.free or _follows_or_grows(change, before, after))
        for change in found
    ]


def permitted(key: str, allowed: Sequence[str]) -> bool:
    """Whether run.allow_change names the key or a section above it."""
    return any(f"{key}.".startswith(f"{name}.") for name in allowed)


def assignments(before: Section, after: Section) -> list[str]:
    """`key=value` for every option of `after` that differs."""
    keys = [change.key for change in _walk(before, after)]
    found = [(key, functools.reduce(getattr, key.split("."), after)) for key in keys]
    return [f"{key}={literal(value)}" for key, value in found if not isinstance(value, Section)]


def _walk(before: Section, after: Section, prefix: str = "") -> Iterator[Change]:
    fields = {field.name: field for one in (after, before) for field in dataclasses.fields(one)}
    for field in fields.values():
        key, free = f"{prefix}{field.name}", after.all_free or field.metadata.get("free", False)
        old, new = (freeze_value(getattr(one, field.name, ABSENT)) for one in (before, after))
        if not (isinstance(old, Section) and isinstance(new, Section)):
            if old != new:
                yield Change(key=key, before=old, after=new, free=free)
        elif old.variant == new.variant:
            yield from _walk(old, new, f"{key}.")
        else:
            free = old.all_free and new.all_free
            yield Change(key=key, before=_variant(old), after=_variant(new), free=free)


def _follows_or_grows(change: Change, before: Any, after: Any) -> bool:
    if change.key == "train.max_steps":
        return change.after > change.before
    moved = after.train.max_steps != before.train.max_steps
    is_of_schedule = change.key in SCHEDULE
    return (
        moved
        and is_of_schedule
        and all(
            follows(config.scheduler, change.key, config.train.max_steps)
            for config in (before, after)
        )
    )


def _variant(section: Section) -> str:
    return getattr(section, "_target_", type(section).__qualname__)
