"""`opt(...)`: one option in one line, with all its facts; `Section`: the options of a class."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeVar

from forge.config.problems import Problem, closest, did_you_mean

if TYPE_CHECKING:
    AutoInt = int
    NumberOrWord = int | str
else:
    # A number, or "auto" until resolve() replaces it: all other code sees a number. OmegaConf 2.3
    # cannot compose unions: it sees Any, and `check_bounds` checks the value.
    AutoInt = Annotated[Any, int | str]
    NumberOrWord = AutoInt  # a number, or one of `choices` to the end


@dataclass(frozen=True)
class Condition:
    """A test of the config and its number of ranks, and words for its failure."""

    holds: Callable[[Any, int], bool]
    otherwise: str


def opt(
    default: Any,
    help: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
    amounts: Sequence[str] = (),
    free: bool = False,
    path: bool = False,
    folder: bool = False,
    address: bool = False,
    time: bool = False,
    verbatim: bool = False,
    not_swept: str = "",
    acts_when: Condition | None = None,
    idle: Any = None,
) -> Any:
    """Make the dataclass field of an option, with all its facts.

    gt, ge, lt, le: bounds of a number, or of each element of a list.
    choices: the legal strings (OmegaConf 2.3 has no Literal). amounts: choices with a number
    after, as in auto:40.
    free: another value is permitted when a run continues.
    path: a file or directory of this machine, made absolute.
    folder: a directory to write on this machine, kept as typed.
    address: or an address in a remote store, such as s3://bucket/runs.
    time: minutes, or Slurm's D-HH:MM:SS.
    verbatim: brackets around a text belong to the text.
    not_swept: advice in place of the values of a sweep.
    acts_when: where the option has an effect; None = everywhere. idle: the derived value where the
    option has no effect.
    """
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    metadata = {
        "help": help,
        "bounds": {name: limit for name, limit in limits.items() if limit is not None},
        "choices": tuple(choices),
        "amounts": tuple(amounts),
        "free": free,
        "path": path,
        "folder": folder,
        "address": address,
        "time": time,
        "verbatim": verbatim,
        "not_swept": not_swept,
        "acts_when": acts_when,
        "idle": idle,
    }
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class FrozenDict(dict):
    """An unchangeable dict; compares, copies and pickles as a dict."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise dataclasses.FrozenInstanceError("a resolved config is read-only")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def freeze_value(value: Any) -> Any:
    """Turn dicts into FrozenDict and lists into tuples, all the way down."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze_value(inner) for key, inner in value.items()})
    return tuple(map(freeze_value, value)) if isinstance(value, list | tuple) else value


def thaw_value(value: Any) -> Any:
    """Copy to plain dicts and lists, all the way down."""
    if isinstance(value, dict):
        return {key: thaw_value(inner) for key, inner in value.items()}
    return [thaw_value(inner) for inner in value] if isinstance(value, list | tuple) else value


S = TypeVar("S", bound="Section")
T = TypeVar("T")


@typing.dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
def section(schema: type[T]) -> type[T]:
    """Make a dataclass; `Section` makes, shows and compares the objects. `@dataclass(kw_only=True)`
    does as well, but compiles methods of each class, a tenth of the time of a command.
    """
    return dataclass(kw_only=True, init=False, repr=False, eq=False)(schema)


@section
class Section:
    """Base of every schema class; read-only once resolved."""

    all_free = False  # whether every option of the section may change when a run continues
    acts_when: ClassVar[Condition | None] = None  # as in `opt`, for all options of the section
    schema_name: ClassVar[str] = ""  # of a variant of a group: schema/GROUP@_here_: NAME
    forges_own: ClassVar[tuple[str, ...]] = ()  # options that no target gets as keywords

    def __init__(self, **values: Any) -> None:
        for field in dataclasses.fields(self):
            value = values.pop(field.name) if field.name in values else default_of(field)
            if value is MISSING:
                raise TypeError(f"{type(self).__name__} needs a value of '{field.name}'")
            self.__dict__[field.name] = value
        for name, value in values.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        values = (
            f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self)
        )
        return f"{type(self).__qualname__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def freeze(self) -> None:
        """Make this section and those below it read-only; lists become tuples."""
        if self.frozen:
            return
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Section):
                value.freeze()
            elif isinstance(value, list | dict):
                setattr(self, field.name, freeze_value(value))
        self.__dict__["_frozen"] = True

    def thaw(self) -> None:
        """Undo `freeze`, for a copy to be changed."""
        self.__dict__.pop("_frozen", None)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Section):
                value.thaw()
            elif isinstance(value, dict):
                setattr(self, field.name, thaw_value(value))

    def clone(self) -> Any:
        """A copy, down to lists and dicts; many times faster than copy.deepcopy."""
        copied = object.__new__(type(self))
        copied.__dict__.update({name: _cloned(value) for name, value in self.__dict__.items()})
        return copied

    @property
    def variant(self) -> Any:
        """The section's kind among the variants of its group."""
        return type(self)

    @classmethod
    def type_name(cls) -> str:
        """The class's name in a config file: a schema of forge by its own name, which stays when
        the module moves; a user's class by its path.
        """
        name = cls.of_forge() and cls.schema_name
        return name or f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def of_forge(cls) -> bool:
        """Whether the class is defined in forge."""
        return cls.__module__.startswith("forge.")

    @property
    def has_own_target(self) -> bool:
        """Whether the section has the `_target_` of its schema, one of forge's."""
        schema = type(self)
        target = schema.of_forge() and getattr(schema, "_target_", None)
        return bool(target) and getattr(self, "_target_", None) == target

    def faults(self, prefix: str) -> Iterator[Problem]:
        """Yield faults of values beyond the limits of single options, such as entries of a dict;
        each option's own limits are met by now. prefix: of the keys of this section.
        """
        return iter(())

    @property
    def frozen(self) -> bool:
        return self.__dict__.get("_frozen", False)

    def __setattr__(self, name: str, value: Any) -> None:
        label, fields = type(self).__name__, type(self).__dataclass_fields__
        if self.frozen:
            raise dataclasses.FrozenInstanceError(f"{label}.{name}: a resolved config is read-only")
        if name not in fields:
            hint = did_you_mean(closest(name, fields))
            raise AttributeError(f"{label} has no option '{name}'; {hint}".removesuffix("; "))
        object.__setattr__(self, name, value)


def _cloned(value: Any) -> Any:
    if isinstance(value, Section):
        return value.clone()
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def variants_of(base: type[S]) -> Iterator[type[S]]:
    """Yield the named schemas below a class, in the order of their definition."""
    for schema in base.__subclasses__():
        if "schema_name" in vars(schema):
            yield schema
        yield from variants_of(schema)


def variant_of(base: type[S], plain: Any) -> S:
    """Make the section described by {schema: NAME, option: value, ...}. Raises ValueError."""
    values = dict(plain) if isinstance(plain, Mapping) else {"schema": plain}
    name, variants = values.pop("schema", None), {v.schema_name: v for v in variants_of(base)}
    if name not in variants:
        raise ValueError(f"its schema is one of {', '.join(variants)}, not {name}")
    section = variants[name]()
    for option, value in values.items():
        setattr(section, option, value)
    return section


@functools.cache
def types_of(schema: type[Section]) -> dict[str, Any]:
    """The declared type of each option of a section."""
    hints = typing.get_type_hints(schema, include_extras=True)
    return {
        name: typing.get_args(hint)[1] if typing.get_origin(hint) is Annotated else hint
        for name, hint in hints.items()
    }


def default_of(field: Field[Any]) -> Any:
    """The default value of a dataclass field, or MISSING."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
