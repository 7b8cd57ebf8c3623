"""Sections of components that a file names by `_target_` alone: a class for each target, made here,
with an option for each parameter that the target takes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config import schemas
from forge.config.bounds import fits
from forge.config.field import Section, thaw_value, types_of
from forge.config.objectives.base import NextToken
from forge.config.targets import signature
from forge.config.targets.signature import REQUIRED, UNREAD

TYPE = "own"
"""What stands in a config file in place of the class of such a section."""
TARGET, ARGS, PARTIAL = "_target_", "_args_", "_partial_"
SECTION = "section"
"""The parameter by which a target asks for the section itself; then any option may be given."""
STEPS = ("max_steps", "total_steps")
"""The number of updates in the run, where a file gives no other."""
GIVEN = {
    "model": (SECTION,),
    "tokenizer": (SECTION, "text"),
    "data": (SECTION,),
    "objective": (SECTION, "tokenizer", "models"),
    "optimizer": (SECTION, "params", "model", *STEPS),
    "scheduler": (SECTION, "optimizer", "step", *STEPS),
}
"""The groups whose files need no schema, and the parameters that forge gives their targets."""
NEEDED = ("text", "tokenizer", "models", "params")
"""Of these, those that a target must have; the others it is given where it has them."""
BASES: dict[str, type[Section]] = {"objective": NextToken}
"""What such a section is below, where that is not the base class of its group."""
AUTO: dict[str, dict[str, Any]] = {"model": {"vocab_size": "auto"}}
"""Defaults of what a group has, whatever those of the target are."""
ABSENT: dict[str, dict[str, Any]] = {"optimizer": {"weight_decay": 0.0}}
"""The same, of a target that has no such parameter."""


class Own(Section):
    """A section whose file has a `_target_` and no schema.

    group: of which it is a section. untaken: options of the group that its target has no parameter
    for; () where that is not known.
    """

    group: ClassVar[str] = ""
    untaken: ClassVar[tuple[str, ...]] = ()

    @property
    def variant(self) -> Any:
        return self.group, getattr(self, TARGET)

    @classmethod
    def type_name(cls) -> str:
        return TYPE

    @property
    def has_own_target(self) -> bool:
        return False

    def keywords(self, parameters: Collection[str]) -> dict[str, Any]:
        """The options that its target gets, which has these parameters, in plain lists and dicts:
        its own, and of those of the group the ones that it takes.
        """
        shared = _options(_base(self.group))
        reads_section = SECTION in parameters
        return {
            name: thaw_value(getattr(self, name))
            for name in _options(type(self))
            if name not in self.forges_own
            if name in parameters or not (name in shared or reads_section)
        } | {TARGET: getattr(self, TARGET)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.group, dict(self.__dict__))


def _again(group: str, state: dict[str, Any]) -> Own:
    made = object.__new__(schema(group, state))
    made.__dict__.update(state)
    return made


def _options(section: type[Section]) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _base(group: str) -> type[Section]:
    return BASES.get(group) or schemas.sections()[group]


def kind_of(group: str, values: Mapping[str, Any]) -> type[Section] | None:
    """What a file of a group with these values is a section of: the schema that has its target,
    else one that is made for it; None where several have it.
    """
    known = schemas.SCHEMAS[group].values()
    found = [one for one in known if getattr(one, TARGET, "") == values[TARGET]]
    return None if len(found) > 1 else next(iter(found), None) or schema(group, values)


def schema(group: str, values: Mapping[str, Any]) -> type[Own]:
    """The class of a section of a group with these values, `_target_` among them.

    Its options are those of the group and the parameters of the target. What is among the values
    and known to be no parameter is none.
    """
    found, shared = signature.read(values[TARGET]), _options(_base(group))
    given = [name for name in values if not name.startswith("_") and name not in GIVEN[group]]
    by_place = found.places[: _count(values.get(ARGS))] if found else ()
    parameters = dict(found.parameters) if found else {}
    for name in by_place:
        parameters.pop(name, None)
    takes_any = found is None or found.anything or SECTION in parameters
    options = {
        name: default
        for name, default in parameters.items()
        if name not in GIVEN[group] and (default is not UNREAD or name in values)
    }
    options |= {name: parameters[name] for name in STEPS if name in parameters and name in values}
    others = [name for name in given if takes_any and name not in parameters]
    others += [name for name in (ARGS, PARTIAL) if name in values]
    options |= dict.fromkeys((name for name in others if name not in shared), REQUIRED)
    hints = types_of(_base(group))
    for name, default in (ABSENT.get(group, {}) | options | AUTO.get(group, {})).items():
        if name in shared:
            options[name] = default if default is REQUIRED or fits(default, hints[name]) else UNREAD
    made = tuple((name, _text(one)) for name, one in options.items() if one is not UNREAD)
    is_known = found is not None and not (found.anything or SECTION in parameters)
    named = parameters if is_known else shared
    return _schema(group, values[TARGET], made, tuple(one for one in shared if one not in named))


def _count(args: Any) -> int:
    return len(args) if isinstance(args, list | tuple) else 0


def _text(default: Any) -> str | None:
    """A default as JSON; None = it has none, or what stands for it is given."""
    return None if default is REQUIRED or default is UNREAD else json.dumps(default)


@functools.cache
def _schema(
    group: str,
    target: str,
    options: tuple[tuple[str, str | None], ...],
    untaken: tuple[str, ...],
) -> type[Own]:
    base = _base(group)
    hints = typing.get_type_hints(base, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for name, text in ((TARGET, json.dumps(target)), *options):
        default = MISSING if text is None else json.loads(text)
        of_group = base.__dataclass_fields__.get(name)
        metadata = of_group.metadata if of_group else {}
        how: dict[str, Any] = {"default": default}
        if isinstance(default, list | dict):
            how = {"default_factory": functools.partial(json.loads, text or "")}
        fields.append((name, hints.get(name, Any), dataclasses.field(**how, metadata=metadata)))
    about = {"__doc__": f"{target}, named by a file without a schema.", "__module__": __name__}
    bases, more = (Own, base), {"group": group, "untaken": untaken}
    return dataclasses.make_dataclass(
        target, fields, bases=bases, namespace=about | more, kw_only=True
    )


def group_of(base: type[Section]) -> str:
    """The group that a class is the base of; '' where its files need a schema."""
    return next((name for name in GIVEN if schemas.sections()[name] is base), "")
