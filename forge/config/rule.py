"""Rules and derivations: functions of sections of the config.

The function names its sections as parameters: `heads(model: Decoder)` gets config.model, and is not
called where config.model is no Decoder. `config` is the whole config, `world` the planned ranks.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from forge.config.field import Section
from forge.config.problems import Problem, shown

Findings = Iterator[tuple[str, str] | tuple[str, str, str]]
"""(key, what is wrong, what to do) of each problem a rule finds. In a pair the sentence of the rule
says what is wrong, with the values of the options it names.
"""


@dataclass(frozen=True)
class Derived:
    """A derived value: key, value and reason."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True)
class OverriddenValue(Derived):
    """A derived value that is not used, since the user states another."""


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """A function, its docstring as the sentence, and the keys the function reads."""

    body: Callable[..., Iterator[Any]]
    reads: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The first paragraph of the docstring."""
        return " ".join((self.body.__doc__ or "").partition("\n\n")[0].split())

    @cached_property
    def _parameters(self) -> dict[str, type]:
        schemas = {schema.__name__: schema for schema in _below(Section)}
        types = inspect.get_annotations(self.body, eval_str=True, locals=schemas)
        return {name: kind for name, kind in types.items() if name != "return"}

    def call(self, config: Any, world: Any) -> Iterator[Any]:
        """Yield the results of the function for the sections of a config."""
        context = {"config": config, "world": world}
        values = {n: context.get(n) or getattr(config, n) for n in self._parameters}
        if all(isinstance(values[name], kind) for name, kind in self._parameters.items()):
            yield from self.body(**values)


def _below(schema: type[Section]) -> Iterator[type[Section]]:
    """Yield the class and its subclasses: a component's rules name sections above the
    component's.
    """
    yield schema
    for subclass in schema.__subclasses__():
        yield from _below(subclass)


@dataclass(frozen=True, kw_only=True)
class Rule(_Declared):
    """A demand on values within their own bounds; a broken warning lets the run start."""

    id: str
    warning: bool

    def check(self, config: Any, world: Any) -> Iterator[Problem]:
        """Yield the problems of a config."""
        for key, *stated, hint in self.call(config, world):
            text = stated[0] if stated else self._with_values(config, key)
            try:
                value = "" if "=" in key else get(config, key)
            except KeyError:  # an option that a kind of layers does not state
                value = ""
            if not isinstance(value, Section | dict) and value != "":
                key = f"{key}={shown(value)}"
            yield Problem(key, text, hint, rule=self.id, warning=self.warning)

    def _with_values(self, config: Any, key: str) -> str:
        """The sentence, with values of the options it names: `model.dim (64)`."""

        def with_value(match: re.Match[str]) -> str:
            name = match[0]
            value = get(config, name) if name in self.reads else None
            is_plain = isinstance(value, int | str if name != key else int)
            return f"{name} ({value})" if is_plain and not isinstance(value, bool) else name

        return re.sub(r"\b\w+(?:\.\w+)+\b(?!=)", with_value, self.sentence)


@dataclass(frozen=True, kw_only=True)
class Derivation(_Declared):
    """Derivation of values that stand for "work it out": yields Derived, or a Problem where
    impossible.
    """

    writes: tuple[str, ...]


def rule(id: str, *reads: str, warning: bool = False) -> Callable[..., Rule]:
    """Make a rule of a function of `Findings`; keys get their values when shown. reads: options the
    rule reads; by default the option of the rule's own name, if any.
    """
    reads = reads or ((id,) if "." in id else ())
    return lambda body: Rule(id=id, reads=reads, warning=warning, body=body)


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """The rules declared in modules, in their order."""
    values = [value for module in modules for value in vars(module).values()]
    return tuple(value for value in values if isinstance(value, Rule))


def derivation(*reads: str, writes: tuple[str, ...]) -> Callable[..., Derivation]:
    """Make a derivation of a function of `Derived`."""
    return lambda body: Derivation(body=body, reads=reads, writes=writes)


def walk(section: Section, prefix: str = "") -> Iterator[tuple[str, Section, Field]]:
    """Yield (key, the field's section, field) of every option and section below a section."""
    for field in dataclasses.fields(section):
        yield f"{prefix}{field.name}", section, field
        value = getattr(section, field.name)
        if isinstance(value, Section):
            yield from walk(value, f"{prefix}{field.name}.")


def get(config: Any, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def put(config: Any, key: str, value: Any) -> None:
    """Set the value at a dotted key of an unfrozen config."""
    above, _, name = key.rpartition(".")
    parent = get(config, above) if above else config
    if isinstance(parent, dict):
        parent[name] = value
    else:
        setattr(parent, name, value)


def nearest_divisor(number: int, preferred: int) -> int:
    """The divisor of a number nearest to the preferred divisor."""
    divisors = (n for n in range(1, min(number, 1 << 20) + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(n - preferred))
