"""An entry of `rewards`: the options that every reward has, beside the keywords of its target."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from forge.config.bounds import check_bounds
from forge.config.field import Section, opt, section, thaw_value
from forge.config.problems import Problem

TARGET = "_target_"


@section
class RewardEntry(Section):
    """Options of every reward, whatever its target is."""

    weight: float = opt(1.0, "factor of the reward in the sum; 0 = only logged")
    timeout: float = opt(60.0, "seconds for the completions of one call", gt=0)
    isolated: bool | None = opt(
        None, "run in processes of its own; null = as forge's rewards need it, yours not"
    )
    columns: dict[str, str] = opt({}, "columns of the rows by parameter: {solution: answer}")


OPTIONS = tuple(field.name for field in dataclasses.fields(RewardEntry))


def options_of(entry: Mapping[str, Any]) -> RewardEntry:
    """The options of an entry that are of every reward."""
    return RewardEntry(**{name: thaw_value(entry[name]) for name in OPTIONS if name in entry})


def keywords_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of an entry for its target."""
    reserved = (TARGET, *OPTIONS)
    return {name: thaw_value(value) for name, value in entry.items() if name not in reserved}


def reward_faults(name: str, entry: Any) -> Iterator[Problem]:
    """Yield the faults of an entry that show without its target."""
    key = f"rewards.{name}"
    if not isinstance(entry, Mapping):
        message = "a reward has a _target_ and options; this is a value."
        yield Problem(f"{key}={entry}", message, f"~{key}")
    elif TARGET not in entry:
        message = "it has no _target_, the function that gives the reward."
        yield Problem(key, message, f"+{key}._target_=forge.rewards.exact.Exact")
    else:
        yield from check_bounds(options_of(entry), f"{key}.")
