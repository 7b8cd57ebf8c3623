"""From an entry of `rewards` to a function, its columns, and checked values."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from forge.build import build, locate, target_parameters
from forge.config.problems import closest, did_you_mean, refusal
from forge.config.rewards.entry import TARGET, keywords_of, options_of

GIVEN = ("prompts", "completions", "completion_ids")
"""Parameters of a reward that are no columns."""


class RewardError(ValueError):
    """A reward that failed: its name, the failure, and a way out."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)  # as given, so that it can be sent to other ranks

    def __str__(self) -> str:
        name, message, hint = self.args
        return f"rewards.{name}: {message} -> {hint}"


class RewardFunction:
    """The function of an entry, with the options of the entry.

    A class, or a function that takes no completions, is called with the entry's keywords and gives
    the reward; any other function is the reward itself, with the keywords bound. Raises ConfigError
    for a target that cannot be built.
    """

    def __init__(self, name: str, entry: Mapping[str, Any], trust: Sequence[str] = ()) -> None:
        self.name, self.entry, self.options = name, entry, options_of(entry)
        self.call = _made(name, entry, trust)
        own = bool(getattr(self.call, "isolated", False))
        self.isolated = own if self.options.isolated is None else self.options.isolated
        self.splits = bool(getattr(self.call, "splits", False))
        self.is_async = _is_async(self.call)

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return target_parameters(self.call)

    @property
    def takes_any(self) -> bool:
        """Whether the function takes every column."""
        kinds = [parameter.kind for parameter in self._parameters.values()]
        return not kinds or inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def needed(self) -> dict[str, str]:
        """The column of each parameter that has no default, by parameter."""
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return {
            name: self.options.columns.get(name, name)
            for name, parameter in self._parameters.items()
            if name not in GIVEN and parameter.kind not in variadic
            if parameter.default is parameter.empty or name in self.options.columns
        }

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise RewardError for a column that rows lack."""
        for parameter, column in self.needed.items():
            if column not in columns:
                names = ", ".join(columns) or "none"
                near = did_you_mean(
                    [
                        f"+rewards.{self.name}.columns.{parameter}={c}"
                        for c in closest(column, columns)
                    ]
                )
                message = f"it needs the column '{column}', and the rows have {names}"
                hint = near or f"+rewards.{self.name}.columns.{parameter}=COLUMN"
                raise RewardError(self.name, message, hint)

    def arguments(
        self, given: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
    ) -> dict[str, Any]:
        """The keywords of a call. given: prompts, completions and completion_ids."""
        self.check_columns(columns.keys())
        renamed = {p: columns[column] for p, column in self.options.columns.items()}
        values = {**columns, **renamed, **given}
        if self.takes_any:
            return values
        return {name: values[name] for name in self._parameters if name in values}


def _made(name: str, entry: Mapping[str, Any], trust: Sequence[str]) -> Callable[..., Any]:
    path, keywords = f"rewards.{name}", keywords_of(entry)
    target = locate(entry[TARGET], path=path, trust=trust)
    parameters = target_parameters(target)
    variadic = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if inspect.isclass(target) or not (
        variadic or {"completions", "completion_ids"} & {*parameters}
    ):
        call = build({TARGET: entry[TARGET], **keywords}, path=path, trust=trust)
        if not callable(call):
            message = f"{entry[TARGET]} gives a {type(call).__name__}, which cannot be called."
            raise refusal(path, message, "name a function, or a class with __call__")
        return call
    for option in keywords:
        if option not in parameters and not variadic:
            message = f"{entry[TARGET]} has no parameter {option}."
            meant = did_you_mean([f"{path}.{p}" for p in closest(option, parameters)])
            raise refusal(f"{path}.{option}", message, meant or f"~{path}.{option}")
    return partial(target, **keywords) if keywords else target


def _is_async(call: Any) -> bool:
    inner = call.func if isinstance(call, partial) else call
    return any(map(inspect.iscoroutinefunction, (inner, type(inner).__call__)))


def explained(error: BaseException) -> str:
    """What a function raised, and where: `KeyError: 'x' (mine.py, line 3)`."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{text}{place}"


def checked(name: str, values: Any, count: int) -> list[float | None]:
    """The values of a reward as numbers. Raises RewardError for anything but `count` numbers or
    None.
    """
    hint = f"return a list of {count} numbers, or None for what it does not judge"
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, list | tuple):
        raise RewardError(name, f"it returned {_kind(values)}, not a list", hint)
    if len(values) != count:
        raise RewardError(name, f"it returned {len(values)} values for {count} completions", hint)
    return [_number(name, value, index, hint) for index, value in enumerate(values)]


def _number(name: str, value: Any, index: int, hint: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(name, f"it returned {_kind(value)} for completion {index}", hint)
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(name, f"it returned {number} for completion {index}", hint)
    return number


def _kind(value: Any) -> str:
    return f"the text {value!r:.60}" if isinstance(value, str) else f"a {type(value).__name__}"
