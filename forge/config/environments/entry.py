"""The `environment` section: what answers a model between the turns of a completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from forge.config.field import Section, opt, section, thaw_value

TARGET = "_target_"
NAME = "environment"


@section
class EnvironmentEntry(Section):
    """Options of every environment, beside the keywords of its target."""

    max_turns: int = opt(8, "turns of the model at most", gt=0)
    max_reply: int = opt(256, "tokens of a reply at most; the rest is cut off", gt=0)
    timeout: float = opt(30.0, "seconds of one reset or step", gt=0)
    weight: float = opt(1.0, "factor of the environment's reward in the sum")


OPTIONS = tuple(field.name for field in dataclasses.fields(EnvironmentEntry))


def options_of(entry: Mapping[str, Any]) -> EnvironmentEntry:
    """The options of the section that are of every environment."""
    return EnvironmentEntry(**{n: thaw_value(entry[n]) for n in OPTIONS if n in entry})


def built_by(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The target and its keywords."""
    return {n: thaw_value(value) for n, value in entry.items() if n not in OPTIONS}
