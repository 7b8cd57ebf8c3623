"""`_target_` to object: the allow-list, the calling convention, and errors that name the config path."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from forge.config.errors import ConfigError, Problem
from forge.config.field import Section
from forge.config.target import allowed, target_fault


def build(section: Any, *, path: str = "", trust: Sequence[str] = (), **runtime: Any) -> Any:
    """Build the component that `section._target_` names.

    A target whose first parameter is annotated with a section class gets the section; any other, such
    as torch.optim.SGD, gets its fields as keywords. `runtime` arguments are passed on either way. `path`
    is the section's place in the config, for errors.

    Raises ConfigError when the target is not allowed, does not exist, or does not take the arguments.
    """
    name, key = section._target_, f"{path}._target_" if path else "_target_"
    target = locate(name, key=key, trust=trust)
    if takes_section(target):
        return target(section, **runtime)
    fields = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.name != "_target_"}
    fault = signature_fault(target, {*fields, *runtime})
    if fault:
        raise ConfigError(
            [Problem(key=f"{key}={name}", what=fault, fix="give the section the options that its target takes", rule="target")]
        )
    return target(**fields, **runtime)


def locate(name: str, *, key: str = "_target_", trust: Sequence[str] = ()) -> Callable[..., Any]:
    """Import a `_target_`. Raises ConfigError when it is not allowed or cannot be found."""
    fault = target_fault(name, trust)
    if fault:
        raise ConfigError([Problem(key=f"{key}={name}", what=fault[0], fix=fault[1], rule="target")])
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        what = f"{name} cannot be imported: {error}."
        raise ConfigError([Problem(key=f"{key}={name}", what=what, fix="check the path", rule="target")]) from error
    home = getattr(found, "__module__", None) or ""
    if not callable(found):
        what, fix = f"{name} is not a class or function.", "check the path"
    elif not allowed(name) or home.partition(".")[0] == name.partition(".")[0]:
        return found
    else:
        what, fix = f"{name} is only an import of {home}.{attribute}.", "name it where it is defined"
    raise ConfigError([Problem(key=f"{key}={name}", what=what, fix=fix, rule="target")])


def takes_section(target: Callable[..., Any]) -> bool:
    """Whether the first parameter of a target is annotated with a section class."""
    call = target.__init__ if inspect.isclass(target) else target
    try:
        parameters = [p for p in inspect.signature(target).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        hints = typing.get_type_hints(call)
    except (ValueError, TypeError, NameError):
        return False
    hint = hints.get(parameters[0].name) if parameters else None
    return isinstance(hint, type) and issubclass(hint, Section)


def signature_fault(target: Callable[..., Any], names: set[str]) -> str | None:
    """Which of the keywords a target does not accept, or which it misses; None when they fit."""
    try:
        parameters = inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    label = getattr(target, "__qualname__", str(target))
    extra = sorted(names - set(parameters))
    if extra:
        return f"{label} does not take {', '.join(extra)}."
    missing = sorted(n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL and n not in names)
    return f"{label} also needs {', '.join(missing)}." if missing else None
