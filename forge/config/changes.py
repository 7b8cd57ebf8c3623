"""What differs between the config of a run and the one it is to go on with, and which of it may."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.config.field import Section, freeze_value
from forge.config.problems import literal
from forge.config.scheduler import SCHEDULE, open_steps

if TYPE_CHECKING:
    from forge.config.root import Config

PLACES = ("run.dir", "run.root", "run.name", "sweep", "sweeper")
"""Where the run lies, and among which others, which is no part of what it is."""

ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One key with its value before and after; `free` when it may change without a word from the
    user.
    """

    key: str
    before: Any
    after: Any
    free: bool


def changes(before: Config, after: Config) -> list[Change]:
    """Every difference between two resolved configs; a section that becomes another variant is one
    change.

    Free are options marked so, a larger train.max_steps, and a schedule that was worked out from
    train.max_steps and follows it.
    """
    found = [change for change in _walk(before, after, "") if not permitted(change.key, PLACES)]
    return [
        dataclasses.replace(change, free=change.free or _follows_or_grows(change, before, after))
        for change in found
    ]


def permitted(key: str, allowed: Sequence[str]) -> bool:
    """Whether run.allow_change names the key or a section above it."""
    return any(key == name or key.startswith(f"{name}.") for name in allowed)


def assignments(before: Section, after: Section) -> list[str]:
    """`key=value` for every option of `after` that differs; a section of another class has no such
    text.
    """
    found = [
        (change.key, functools.reduce(getattr, change.key.split("."), after))
        for change in _walk(before, after, "")
    ]
    return [f"{key}={literal(value)}" for key, value in found if not isinstance(value, Section)]


def _walk(
    before: Section, after: Section, prefix: str, *, all_free: bool = False
) -> Iterator[Change]:
    for field in dataclasses.fields(after):
        key = f"{prefix}{field.name}"
        old, new = (
            freeze_value(getattr(section, field.name, ABSENT)) for section in (before, after)
        )
        free = all_free or field.metadata.get("free", False)
        if isinstance(old, Section) and isinstance(new, Section):
            if type(old) is type(new):
                yield from _walk(old, new, f"{key}.", all_free=new.all_free)
            else:
                yield Change(
                    key=key,
                    before=_variant(old),
                    after=_variant(new),
                    free=old.all_free and new.all_free,
                )
        elif old != new:
            yield Change(key=key, before=old, after=new, free=free)


def _follows_or_grows(change: Change, before: Config, after: Config) -> bool:
    if change.key == "train.max_steps":
        return change.after > change.before
    group, _, name = change.key.partition(".")
    moved = after.train.max_steps != before.train.max_steps
    return (
        group == "scheduler" and moved and all(_follows(config, name) for config in (before, after))
    )


def _follows(config: Config, name: str) -> bool:
    """Whether a value of the schedule is what would be worked out from train.max_steps."""
    if f"scheduler.{name}" not in SCHEDULE:
        return False
    probe = copy.deepcopy(config.scheduler)
    probe.thaw()
    setattr(probe, name, None)
    found = {key: value for key, value, _ in open_steps(probe, config.train.max_steps)}
    return found.get(f"scheduler.{name}") == getattr(config.scheduler, name)


def _variant(section: Section) -> str:
    return getattr(section, "_target_", type(section).__qualname__)
