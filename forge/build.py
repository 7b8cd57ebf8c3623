"""`_target_` to object: what may be built where, the calling convention, and errors that name the
config path.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from forge.config import packages
from forge.config.field import Section, thaw_value
from forge.config.problems import ConfigError, Problem, closest, did_you_mean
from forge.config.target import (
    OF_TORCH,
    OF_USER,
    inner_faults,
    of_torch,
    place_of,
    target_fault,
    trusted,
)


def build(section: Any, *, path: str, trust: Sequence[str] = (), **runtime: Any) -> Any:
    """Build the component that `section._target_` names.

    A target whose first parameter is annotated with a section class gets the section; any other,
    such as torch.optim.SGD, gets its fields as keywords. `runtime` arguments are passed on either
    way. `path` is the section's place in the config: it says what may be built, and is named in
    errors.

    A mapping, an entry of a free dict such as `callbacks`, gives its values as keywords in the same
    way.

    Raises ConfigError when the target may not be built there, does not exist, or does not take the
    arguments.
    """
    return bind(section, path=path, trust=trust, **runtime)()


def bind(
    section: Any, *, path: str, trust: Sequence[str] = (), **runtime: Any
) -> Callable[[], Any]:
    """All of `build` but the last call, which is left to the caller; raises what `build` raises."""
    key = f"{path}._target_"
    if isinstance(section, Mapping):
        return _bind_mapping(section, path, trust, runtime)
    name = section._target_
    target = locate(name, path=path, trust=trust)
    if takes_section(target):
        return partial(target, section, **runtime)
    fields = {
        f.name: getattr(section, f.name)
        for f in dataclasses.fields(section)
        if f.name != "_target_"
    }
    fault = signature_fault(target, {*fields, *runtime})
    if fault:
        raise ConfigError(
            [
                Problem(
                    key=f"{key}={name}",
                    what=fault,
                    fix="give the section the options that its target takes",
                    rule="target",
                )
            ]
        )
    return partial(target, **fields, **runtime)


def _bind_mapping(
    entry: Mapping[str, Any], path: str, trust: Sequence[str], runtime: Mapping[str, Any]
) -> Callable[[], Any]:
    name, key = entry["_target_"], f"{path}._target_"
    keywords = {
        option: thaw_value(value) for option, value in entry.items() if option != "_target_"
    }
    target = locate(name, path=path, trust=trust)
    problems = [
        Problem(key=at, what=what, fix=fix, rule="target")
        for at, what, fix in inner_faults(keywords, path, trust)
    ]
    wrong = [
        option for option in sorted(keywords) if not _takes(target, option) or option in runtime
    ]
    problems += [_keyword_fault(target, path, option, runtime) for option in wrong]
    refused = [given for given in runtime if not _takes(target, given)]
    if refused:
        what = f"{_label(target)} does not take {', '.join(refused)}, which forge gives it."
        problems.append(
            Problem(
                key=f"{key}={name}",
                what=what,
                fix=f"add the parameter {', '.join(refused)}",
                rule="target",
            )
        )
    missing = [] if problems else _missing(target, {*keywords, *runtime})
    if missing:
        fix = " ".join(f"+{path}.{parameter}=..." for parameter in missing)
        problems.append(
            Problem(
                key=f"{key}={name}",
                what=f"{_label(target)} also needs {', '.join(missing)}.",
                fix=fix,
                rule="target",
            )
        )
    if problems:
        raise ConfigError(problems)
    return partial(target, **keywords, **runtime)


def _keyword_fault(
    target: Callable[..., Any], path: str, name: str, runtime: Mapping[str, Any]
) -> Problem:
    if name in runtime:
        return Problem(
            key=f"{path}.{name}",
            what=f"{name} is given by forge.",
            fix=f"~{path}.{name}",
            rule="target",
        )
    takes = [parameter for parameter in _parameters(target) or {} if parameter not in runtime]
    meant = did_you_mean([f"{path}.{parameter}" for parameter in closest(name, takes)])
    takes_what = f"it takes {', '.join(takes)}" if takes else "it takes no keywords"
    return Problem(
        key=f"{path}.{name}",
        what=f"{_label(target)} does not take {name}.",
        fix=meant or takes_what,
        rule="target",
    )


def locate(name: str, *, path: str, trust: Sequence[str] = ()) -> Callable[..., Any]:
    """Import the `_target_` of the section or entry at `path`, calling nothing.

    Raises ConfigError when it may not be built there, cannot be found, or is of the wrong kind.
    """
    place, found = place_of(path), None
    what, fix = target_fault(name, place, trust) or ("", "")
    if not what:
        found, what, fix = _imported(name)
    if not what:
        what, fix = _kind_fault(found, name, place, ours=not trusted(name, trust))
    if what:
        raise ConfigError(
            [Problem(key=f"{path}._target_={name}", what=what, fix=fix, rule="target")]
        )
    assert callable(found)
    return found


def _imported(name: str) -> tuple[Any, str, str]:
    """What a dotted path names, what is wrong with it, and what to do."""
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        return None, f"{name} cannot be imported: {error}.", "check the path"
    except Exception as error:  # a package of the user's may raise anything
        return None, *packages.explain(module, error)
    return (
        (found, "", "")
        if callable(found)
        else (None, f"{name} is not a class or function.", "check the path")
    )


def _kind_fault(found: Any, name: str, place: str, *, ours: bool) -> tuple[str, str]:
    """Why something is not of the kind that its place takes, and what to do, or empty. ours: it
    needs no trust.
    """
    base = OF_TORCH[place] if ours and of_torch(name, place) else OF_USER.get(place)
    if base is None:
        return "", ""
    if not isinstance(found, type) or not issubclass(found, _imported(base)[0]):
        return f"{name} is no subclass of {base}.", f"name one, or make it a subclass of {base}"
    if ours and not of_torch(found.__module__ + ".", place):
        return (
            f"{name} is only an import of {found.__module__}.{found.__qualname__}.",
            "name it where it is defined",
        )
    return "", ""


def takes_section(target: Callable[..., Any]) -> bool:
    """Whether the first parameter of a target is annotated with a section class."""
    call = target.__init__ if inspect.isclass(target) else target
    try:
        parameters = [
            p
            for p in inspect.signature(target).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
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
    return name in parameters and parameters[name].kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )


def _missing(target: Callable[..., Any], names: set[str]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = (_parameters(target) or {}).items()
    return sorted(
        name
        for name, p in parameters
        if p.default is p.empty and p.kind not in variable and name not in names
    )


def _label(target: Callable[..., Any]) -> str:
    return getattr(target, "__qualname__", str(target))
