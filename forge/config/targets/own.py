"""Sections of components named in a file by `_target_` alone: a class for each target, made here,
with an option for each parameter of the target.
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
"""Stands in a config file in place of the section's class."""
TARGET, ARGS, PARTIAL = "_target_", "_args_", "_partial_"
SECTION = "section"
"""The parameter of a target for the section itself; any option may then be given."""
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
"""The groups with files that need no schema, and the parameters forge gives their targets."""
NEEDED = ("text", "tokenizer", "models", "params")
"""Parameters of GIVEN every target must have; the others are optional."""
BASES: dict[str, type[Section]] = {"objective": NextToken}
"""Base class of the section, where it is not the base class of the group."""
AUTO: dict[str, dict[str, Any]] = {"model": {"vocab_size": "auto"}}
"""Defaults of a group, whatever the target's are."""
ABSENT: dict[str, dict[str, Any]] = {"optimizer": {"weight_decay": 0.0}}
"""Defaults of a group for a target without such a parameter."""


class Own(Section):
    """A section from a file with a `_target_` and no schema.

    group: the section's group. untaken: options of the group without a parameter of the target; ()
    where unknown.
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
        """The options for a target with these parameters, in plain lists and dicts: the section's
        own options, and the group's options among the parameters.
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
    section = object.__new__(schema(group, state))
    section.__dict__.update(state)
    return section


def _options(section: type[Section]) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _base(group: str) -> type[Section]:
    return BASES.get(group) or schemas.sections()[group]


def kind_of(group: str, values: Mapping[str, Any]) -> type[Section] | None:
    """The class of a section for a file of a group: the schema with the file's target, else a class
    made for the target; None where several schemas have the target.
    """
    variants = schemas.SCHEMAS[group].values()
    matches = [variant for variant in variants if getattr(variant, TARGET, "") == values[TARGET]]
    return None if len(matches) > 1 else next(iter(matches), None) or schema(group, values)


def schema(group: str, values: Mapping[str, Any]) -> type[Own]:
    """Make the class of a group's section for the values of a file, `_target_` included.

    Options of the class are the group's options and the target's parameters. A value known to be no
    parameter becomes no option.
    """
    parsed, shared = signature.read_signature(values[TARGET]), _options(_base(group))
    parameters = _by_keyword(parsed, _count(values.get(ARGS))) if parsed else {}
    takes_any = parsed is None or parsed.anything or SECTION in parameters
    options = _parameter_options(group, parameters, values)
    extra = _no_parameters(group, parameters, values) if takes_any else []
    extra += [name for name in (ARGS, PARTIAL) if name in values]
    options |= dict.fromkeys((name for name in extra if name not in shared), REQUIRED)
    options |= _shared_defaults(group, options)
    defaults = tuple((name, _text(value)) for name, value in options.items() if value is not UNREAD)
    names = shared if takes_any else parameters
    return _schema(
        group, values[TARGET], defaults, tuple(name for name in shared if name not in names)
    )


def _parameter_options(
    group: str, parameters: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Options for the parameters of a target: with a known default, or with a value in the file."""
    options = {
        name: default
        for name, default in parameters.items()
        if name not in GIVEN[group] and (default is not UNREAD or name in values)
    }
    steps = (name for name in STEPS if name in parameters and name in values)
    return options | {name: parameters[name] for name in steps}


def _no_parameters(
    group: str, parameters: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    """Names of values that are neither parameters of the target nor given by forge."""
    given = (*parameters, *GIVEN[group])
    return [name for name in values if not name.startswith("_") and name not in given]


def _by_keyword(parsed: signature.Signature, count: int) -> dict[str, Any]:
    """Parameters of a target, by name, without the first `count` by place."""
    by_place = parsed.places[:count]
    return {name: value for name, value in parsed.parameters.items() if name not in by_place}


def _shared_defaults(group: str, options: dict[str, Any]) -> dict[str, Any]:
    """Defaults of the group's options; without one, where a default has another type."""
    hints = types_of(_base(group))
    defaults = ABSENT.get(group, {}) | options | AUTO.get(group, {})
    return {
        name: default if default is REQUIRED or fits(default, hints[name]) else UNREAD
        for name, default in defaults.items()
        if name in _options(_base(group))
    }


def _count(args: Any) -> int:
    return len(args) if isinstance(args, list | tuple) else 0


def _text(default: Any) -> str | None:
    """A default as JSON; None = no default, or a value stands in for the default."""
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
        arguments: dict[str, Any] = {"default": default}
        if isinstance(default, list | dict):
            arguments = {"default_factory": functools.partial(json.loads, text or "")}
        fields.append(
            (name, hints.get(name, Any), dataclasses.field(**arguments, metadata=metadata))
        )
    about = {"__doc__": f"{target}, named by a file without a schema.", "__module__": __name__}
    bases, class_values = (Own, base), {"group": group, "untaken": untaken}
    return dataclasses.make_dataclass(
        target, fields, bases=bases, namespace=about | class_values, kw_only=True
    )


def config_group(base: type[Section]) -> str:
    """The group of a base class; '' where the group's files need a schema."""
    return next((name for name in GIVEN if schemas.sections()[name] is base), "")
