"""What rules and derivations are, and how they are declared.

Both are functions of sections of the config, which they name as parameters: `heads(model: Decoder)`
gets config.model, and is not called where that is no Decoder. `config` is all of it, `world` the
ranks it would run on.
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
"""(key, what is wrong, what to do) of each problem that a rule finds. In a pair the sentence of the
rule says what is wrong, with the values of the options that it names.
"""


@dataclass(frozen=True)
class Derived:
    """A value that was worked out: its key, the value and why."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """A function with the keys it reads; the docstring says what it does."""

    body: Callable[..., Iterator[Any]]
    reads: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The first paragraph of the docstring."""
        return " ".join((self.body.__doc__ or "").partition("\n\n")[0].split())

    @cached_property
    def _parameters(self) -> dict[str, type]:
        named = {schema.__name__: schema for schema in _below(Section)}
        found = inspect.get_annotations(self.body, eval_str=True, locals=named)
        return {name: kind for name, kind in found.items() if name != "return"}

    def call(self, config: Any, world: Any) -> Iterator[Any]:
        """What the function yields for its sections of this config."""
        given = {"config": config, "world": world}
        values = {n: given.get(n) or getattr(config, n) for n in self._parameters}
        if all(isinstance(values[name], kind) for name, kind in self._parameters.items()):
            yield from self.body(**values)


def _below(schema: type[Section]) -> Iterator[type[Section]]:
    """The class and those below it: a component names in its rules what is above it."""
    yield schema
    for each in schema.__subclasses__():
        yield from _below(each)


@dataclass(frozen=True, kw_only=True)
class Rule(_Declared):
    """A demand on values that pass their own bounds; a broken warning lets the run start."""

    id: str
    warning: bool

    def check(self, config: Any, world: Any) -> Iterator[Problem]:
        """The problems of a config."""
        for key, *what, fix in self.call(config, world):
            text = what[0] if what else self._with_values(config, key)
            value = "" if "=" in key else get(config, key)
            if not isinstance(value, Section | dict) and value != "":
                key = f"{key}={shown(value)}"
            yield Problem(key, text, fix, rule=self.id, warning=self.warning)

    def _with_values(self, config: Any, key: str) -> str:
        """The sentence, with values of options that it names: `model.dim (64)`."""

        def with_value(match: re.Match[str]) -> str:
            name = match[0]
            value = get(config, name) if name in self.reads else None
            known = isinstance(value, int | str if name != key else int)
            return f"{name} ({value})" if known and not isinstance(value, bool) else name

        return re.sub(r"\b\w+(?:\.\w+)+\b(?!=)", with_value, self.sentence)


@dataclass(frozen=True, kw_only=True)
class Derivation(_Declared):
    """Works out values that mean "work it out": yields Derived, or a Problem where it cannot."""

    writes: tuple[str, ...]


def rule(id: str, *reads: str, warning: bool = False) -> Callable[..., Rule]:
    """Make a rule of a function that yields `Findings`; keys get their values when shown. reads:
    where none is given, the option that the rule is named after, if there is one.
    """
    reads = reads or ((id,) if "." in id else ())
    return lambda body: Rule(id=id, reads=reads, warning=warning, body=body)


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """The rules that modules declare, in their order."""
    found = [value for module in modules for value in vars(module).values()]
    return tuple(value for value in found if isinstance(value, Rule))


def derivation(*reads: str, writes: tuple[str, ...]) -> Callable[..., Derivation]:
    """Make a derivation of a function that yields `Derived`."""
    return lambda body: Derivation(body=body, reads=reads, writes=writes)


def walk(section: Section, prefix: str = "") -> Iterator[tuple[str, Section, Field]]:
    """(key, section that has it, field) of every option and section below a section."""
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
    """Set the value at a dotted key of a config that is not frozen."""
    above, _, name = key.rpartition(".")
    parent = get(config, above) if above else config
    if isinstance(parent, dict):
        parent[name] = value
    else:
        setattr(parent, name, value)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to the wanted one."""
    divisors = (n for n in range(1, min(number, 1 << 20) + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(n - wanted))
