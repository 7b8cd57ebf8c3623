"""`_target_` to object: the allow-list, the calling convention, and errors that name the config path."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from forge.config import packages
from forge.config.errors import ConfigError, Problem, closest, did_you_mean
from forge.config.field import Section
from forge.config.frozen import thaw_value
from forge.config.target import allowed, target_fault


def build(section: Any, *, path: str = "", trust: Sequence[str] = (), **runtime: Any) -> Any:
    """Build the component that `section._target_` names.

    A target whose first parameter is annotated with a section class gets the section; any other, such
    as torch.optim.SGD, gets its fields as keywords. `runtime` arguments are passed on either way. `path`
    is the section's place in the config, for errors.

    A mapping, an entry of a free dict such as `callbacks`, gives its values as keywords in the same way.

    Raises ConfigError when the target is not allowed, does not exist, or does not take the arguments.
    """
    return bind(section, path=path, trust=trust, **runtime)()


def bind(section: Any, *, path: str = "", trust: Sequence[str] = (), **runtime: Any) -> Callable[[], Any]:
    """All of `build` but the last call, which is left to the caller; raises what `build` raises."""
    key = f"{path}._target_" if path else "_target_"
    if isinstance(section, Mapping):
        return _bind_mapping(section, key, path, trust, runtime)
    name = section._target_
    target = locate(name, key=key, trust=trust)
    if takes_section(target):
        return partial(target, section, **runtime)
    fields = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.name != "_target_"}
    fault = signature_fault(target, {*fields, *runtime})
    if fault:
        raise ConfigError(
            [Problem(key=f"{key}={name}", what=fault, fix="give the section the options that its target takes", rule="target")]
        )
    return partial(target, **fields, **runtime)


def _bind_mapping(entry: Mapping[str, Any], key: str, path: str, trust: Sequence[str], runtime: Mapping[str, Any]) -> Callable[[], Any]:
    name = entry["_target_"]
    keywords = {key: thaw_value(value) for key, value in entry.items() if key != "_target_"}
    target = locate(name, key=key, trust=trust)
    problems = [_keyword_fault(target, path, wrong, runtime) for wrong in sorted(keywords) if not _takes(target, wrong) or wrong in runtime]
    refused = [given for given in runtime if not _takes(target, given)]
    if refused:
        what = f"{_label(target)} does not take {', '.join(refused)}, which forge gives it."
        problems.append(Problem(key=f"{key}={name}", what=what, fix=f"add the parameter {', '.join(refused)}", rule="target"))
    missing = [] if problems else _missing(target, {*keywords, *runtime})
    if missing:
        fix = " ".join(f"+{path}.{parameter}=..." for parameter in missing)
        problems.append(Problem(key=f"{key}={name}", what=f"{_label(target)} also needs {', '.join(missing)}.", fix=fix, rule="target"))
    if problems:
        raise ConfigError(problems)
    return partial(target, **keywords, **runtime)


def _keyword_fault(target: Callable[..., Any], path: str, name: str, runtime: Mapping[str, Any]) -> Problem:
    if name in runtime:
        return Problem(key=f"{path}.{name}", what=f"{name} is given by forge.", fix=f"~{path}.{name}", rule="target")
    takes = [parameter for parameter in _parameters(target) or {} if parameter not in runtime]
    meant = did_you_mean([f"{path}.{parameter}" for parameter in closest(name, takes)])
    takes_what = f"it takes {', '.join(takes)}" if takes else "it takes no keywords"
    return Problem(key=f"{path}.{name}", what=f"{_label(target)} does not take {name}.", fix=meant or takes_what, rule="target")


def locate(name: str, *, key: str = "_target_", trust: Sequence[str] = ()) -> Callable[..., Any]:
    """Import a `_target_`. Raises ConfigError when it is not allowed or cannot be found."""
    fault = target_fault(name, trust)
    if fault:
        raise ConfigError([Problem(key=f"{key}={name}", what=fault[0], fix=fault[1], rule="target")])
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        what = f"{name} cannot be imported: {error}."
        raise ConfigError([Problem(key=f"{key}={name}", what=what, fix="check the path", rule="target")]) from error
    except Exception as error:  # a package of the user's may raise anything
        what, fix = packages.explain(module, error)
        raise ConfigError([Problem(key=f"{key}={name}", what=what, fix=fix, rule="target")]) from error
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
    extra = sorted(name for name in names if not _takes(target, name))
    if extra:
        return f"{_label(target)} does not take {', '.join(extra)}."
    missing = _missing(target, names)
    return f"{_label(target)} also needs {', '.join(missing)}." if missing else None


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a target; None where it does not tell, as some written in C do not."""
    try:
        return inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None


def _takes(target: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(target)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    return name in parameters and parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _missing(target: Callable[..., Any], names: set[str]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = (_parameters(target) or {}).items()
    return sorted(name for name, p in parameters if p.default is p.empty and p.kind not in variable and name not in names)


def _label(target: Callable[..., Any]) -> str:
    return getattr(target, "__qualname__", str(target))
