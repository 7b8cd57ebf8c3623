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

Target = Callable[..., Any]


def build(section: Any, *, path: str, trust: Sequence[str] = (), **runtime: Any) -> Any:
    """Build the component that `section._target_` names.

    A target whose first parameter is annotated with a section class gets the section; any other,
    such as torch.optim.SGD, gets its fields as keywords, and so does that of a mapping, an entry of
    a free dict such as `callbacks`. `runtime` arguments are passed on either way. `path`: the place
    in the config, which says what may be built, and is named in errors.

    Raises ConfigError when the target may not be built there, does not exist, or does not take the
    arguments.
    """
    return bind(section, path=path, trust=trust, **runtime)()


def bind(
    section: Any,
    *,
    path: str,
    trust: Sequence[str] = (),
    offered: Mapping[str, Any] | None = None,
    **runtime: Any,
) -> Callable[[], Any]:
    """All of `build` but the last call, which is left to the caller; raises what `build` raises.

    offered: further arguments, of which a target gets those that it names as parameters.
    """
    is_entry = isinstance(section, Mapping)
    fields = (
        dict(section)
        if is_entry
        else {
            field.name: getattr(section, field.name)
            for field in dataclasses.fields(section)
            if field.name not in section.forges_own
        }
    )
    for inner, value in fields.items():
        if isinstance(value, Section) and (name := getattr(value, "_target_", "")):
            locate(name, path=f"{path}.{inner}", trust=trust)  # which `make` builds
    name = fields.pop("_target_")
    target, key = locate(name, path=path, trust=trust), f"{path}._target_={name}"
    named = _parameters(target) or {}
    runtime |= {name: value for name, value in (offered or {}).items() if name in named}
    if is_entry:
        fields = {option: thaw_value(value) for option, value in fields.items()}
        problems = _entry_problems(target, key, path, fields, runtime)
        inner = inner_faults(fields, path, trust)
        problems = [*(Problem(*fault, rule="target") for fault in inner), *problems]
    elif takes_section(target):
        if problems := _refused(target, key, runtime):
            raise ConfigError(problems)
        return partial(target, section, **runtime)
    elif fault := signature_fault(target, {*fields, *runtime}):
        fix = "give the section the options that its target takes"
        problems = [Problem(key, fault, fix, rule="target")]
    else:
        problems = []
    if problems:
        raise ConfigError(problems)
    return partial(target, **fields, **runtime)


def make(part: Section, section: Section) -> Any:
    """The component of a section inside of another, built with the outer one by what that one
    builds; `build` has seen to it that it may be.
    """
    return _imported(part._target_)[0](section)  # type: ignore[attr-defined]


def _entry_problems(
    target: Target, key: str, path: str, keywords: Mapping[str, Any], runtime: Mapping[str, Any]
) -> list[Problem]:
    label, problems = _label(target), []
    takes = [name for name in _parameters(target) or {} if name not in runtime]
    for name in sorted(keywords):
        at = f"{path}.{name}"
        if name in runtime:
            problems.append(Problem(at, f"{name} is given by forge.", f"~{at}", rule="target"))
        elif not _takes(target, name):
            meant = did_you_mean([f"{path}.{parameter}" for parameter in closest(name, takes)])
            fix = meant or f"it takes {', '.join(takes) or 'no keywords'}"
            problems.append(Problem(at, f"{label} does not take {name}.", fix, rule="target"))
    problems += _refused(target, key, runtime)
    if not problems and (missing := _missing(target, {*keywords, *runtime})):
        fix = " ".join(f"+{path}.{parameter}=..." for parameter in missing)
        what = f"{label} also needs {', '.join(missing)}."
        problems.append(Problem(key, what, fix, rule="target"))
    return problems


def _refused(target: Target, key: str, runtime: Mapping[str, Any]) -> list[Problem]:
    """That a target does not take what it is given besides what the config says."""
    refused = ", ".join(name for name in runtime if not _takes(target, name))
    what = f"{_label(target)} does not take {refused}, which forge gives it."
    return [Problem(key, what, f"add the parameter {refused}", rule="target")] if refused else []


def locate(name: str, *, path: str, trust: Sequence[str] = ()) -> Target:
    """Import the `_target_` of the section or entry at `path`, calling nothing.

    Raises ConfigError when it may not be built there, cannot be found, or is of the wrong kind.
    """
    place, found = place_of(path), None
    fault = target_fault(name, place, trust)
    if fault is None:
        found, fault = _imported(name)
    if fault is None:
        fault = _kind_fault(found, name, place, ours=not trusted(name, trust))
    if fault is not None:
        raise ConfigError(Problem(f"{path}._target_={name}", *fault, rule="target"))
    assert callable(found)
    return found


def _imported(name: str) -> tuple[Any, tuple[str, str] | None]:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        return None, (f"{name} cannot be imported: {error}.", "check the path")
    except Exception as error:  # a package of the user's may raise anything
        return None, packages.explain(module, error)
    if not callable(found):
        return None, (f"{name} is not a class or function.", "check the path")
    return found, None


def _kind_fault(found: Any, name: str, place: str, *, ours: bool) -> tuple[str, str] | None:
    """Why something is not of the kind that its place takes, and what to do. ours: it needs no
    trust.
    """
    from_torch = ours and of_torch(name, place)
    base = OF_TORCH[place] if from_torch else OF_USER.get(place)
    if base is None:
        return None
    if not isinstance(found, type) or not issubclass(found, _imported(base)[0]):
        return f"{name} is no subclass of {base}.", f"name one, or make it a subclass of {base}"
    home = f"{found.__module__}.{found.__qualname__}"
    if ours and home != name and not of_torch(home, place):
        what = f"{name} is only an import of {home}."
        return what, "name it where it is defined"
    return None


def takes_section(target: Target) -> bool:
    """Whether the first parameter of a target is annotated with a section class."""
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (ValueError, TypeError, NameError):
        return False
    parameters = (_parameters(target) or {}).values()
    first = next((p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD), "")
    hint = hints.get(first)
    return isinstance(hint, type) and issubclass(hint, Section)


def signature_fault(target: Target, names: set[str]) -> str | None:
    """Which of the keywords a target does not accept, or which it misses; None when they fit."""
    extra = sorted(name for name in names if not _takes(target, name))
    if extra:
        return f"{_label(target)} does not take {', '.join(extra)}."
    missing = _missing(target, names)
    return f"{_label(target)} also needs {', '.join(missing)}." if missing else None


def _parameters(target: Target) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a target; None where it does not tell, as some written in C do not."""
    try:
        return inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None


def _takes(target: Target, name: str) -> bool:
    parameters = _parameters(target)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    found = parameters.get(name)
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def _missing(target: Target, names: set[str]) -> list[str]:
    return sorted(
        name
        for name, p in (_parameters(target) or {}).items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and name not in names
    )


def _label(target: Target) -> str:
    return getattr(target, "__qualname__", str(target))
