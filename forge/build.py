"""`_target_` to object: what may be built where, the calling convention, and errors that name the
config path.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from forge.config.field import Section, thaw_value
from forge.config.problems import ConfigError, Problem, closest, did_you_mean
from forge.config.targets import packages
from forge.config.targets.own import ARGS, PARTIAL, SECTION, TARGET, Own
from forge.config.targets.target import (
    OF_TORCH,
    OF_USER,
    inner_faults,
    of_torch,
    place_of,
    target_fault,
    trusted,
)

Target = Callable[..., Any]


def build(
    section: Any,
    *,
    path: str,
    trust: Sequence[str] = (),
    offered: Mapping[str, Any] | None = None,
    **runtime: Any,
) -> Any:
    """Build the component that `section._target_` names.

    A target whose first parameter is annotated with a section class gets the section; any other,
    such as torch.optim.SGD, gets its fields as keywords, and so does that of a mapping, an entry of
    a free dict such as `callbacks`. `runtime` arguments are passed on either way, and of those that
    are `offered` the ones that it names as parameters. `path`: the place in the config, which says
    what may be built, and is named in errors.

    Raises ConfigError when the target may not be built there, does not exist, or does not take the
    arguments.
    """
    return bind(section, path=path, trust=trust, offered=offered, **runtime)()


def bind(
    section: Any,
    *,
    path: str,
    trust: Sequence[str] = (),
    offered: Mapping[str, Any] | None = None,
    **runtime: Any,
) -> Callable[..., Any]:
    """All of `build` but the last call, which is left to the caller; raises what `build` raises.

    offered: further arguments, of which a target gets those that it names as parameters.
    """
    by_key = isinstance(section, Mapping | Own)
    name = section[TARGET] if isinstance(section, Mapping) else section._target_
    target, key = locate(name, path=path, trust=trust), f"{path}.{TARGET}={name}"
    named = parameters_of(target)
    fields = _keywords(section, named)
    for inner, value in fields.items():
        if isinstance(value, Section) and (part := getattr(value, TARGET, "")):
            locate(part, path=f"{path}.{inner}", trust=trust)  # which `make` builds
    given = dict(offered or {}) | ({SECTION: section} if isinstance(section, Own) else {})
    stated = fields if isinstance(section, Own) else {}  # an entry that states one is refused
    runtime |= {name: value for name, value in given.items() if name in named.keys() - stated}
    if not isinstance(section, Mapping) and (taken := section_taken(target)):
        parameter, takes = taken
        problems = _refused(target, key, runtime)
        if isinstance(section, Own) and not isinstance(section, takes):
            what = f"{_label(target)} takes the section {takes.__name__}, and the file names none."
            begin = f"defaults: [/schema/{path}@_here_: {takes.schema_name}, _self_]"
            problems = [Problem(key, what, f"begin the file with '{begin}'", rule="target")]
        if problems:
            raise ConfigError(problems)
        return partial(target, **(runtime | {parameter: section}))
    if by_key:
        found = inner_faults(fields, path, trust)
        problems = [Problem(*fault, rule="target") for fault in found]
        problems += _entry_problems(target, key, path, fields, runtime)
        problems = problems or list(_inner_problems(fields, path, given))
    elif fault := signature_fault(target, {*fields, *runtime}):
        fix = "give the section the options that its target takes"
        problems = [Problem(key, fault, fix, rule="target")]
    else:
        problems = []
    if problems:
        raise ConfigError(problems)

    def call(**late: Any) -> Any:
        return _made({TARGET: target, **fields, PARTIAL: False}, given, **(runtime | late))

    return call


def _keywords(section: Any, parameters: Collection[str]) -> dict[str, Any]:
    """What a section, or an entry of a dict, has for its target, which has these parameters."""
    if isinstance(section, Mapping):
        found = {option: thaw_value(value) for option, value in section.items()}
    elif isinstance(section, Own):
        found = section.keywords(parameters)
    else:
        names = [field.name for field in dataclasses.fields(section)]
        found = {name: getattr(section, name) for name in names if name not in section.forges_own}
    del found[TARGET]
    return found


def _made(value: Any, given: Mapping[str, Any], **more: Any) -> Any:
    """A value with what every `_target_` in it builds, innermost first; each gets of the `given`
    arguments those that it names as parameters, and the outermost gets `more`.
    """
    if isinstance(value, list):
        return [_made(each, given) for each in value]
    if not isinstance(value, dict):
        return value
    made = {name: _made(each, given) for name, each in value.items()} | more
    if TARGET not in made:
        return made
    target, args = made.pop(TARGET), made.pop(ARGS, [])
    call = _imported(target)[0] if isinstance(target, str) else target
    if isinstance(target, str):
        taken = {*made, *_by_place(call, args)}
        own = {name for name in parameters_of(call) if name not in taken}
        made |= {name: each for name, each in given.items() if name in own}
    if made.pop(PARTIAL, False):
        return partial(call, *args, **made)
    return call(*args, **made)


def _by_place(target: Target, args: Sequence[Any]) -> list[str]:
    """The parameters that arguments without names are for."""
    found = parameters_of(target).values()
    places = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return places[: len(args)]


def _inner_problems(value: Any, path: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with each `_target_` inside the keywords of another, all of which may be
    built.
    """
    items = enumerate(value) if isinstance(value, list) else value.items()
    for name, each in items:
        if not isinstance(each, list | dict):
            continue
        at = f"{path}.{name}"
        if isinstance(each, dict) and TARGET in each:
            inner, key = each[TARGET], f"{at}.{TARGET}={each[TARGET]}"
            target, fault = _imported(inner)
            place = place_of(path.partition(".")[0])
            if fault is None and of_torch(inner, place):
                fault = _kind_fault(target, inner, place, ours=True)
            if fault is not None:
                yield Problem(key, *fault, rule="target")
                continue
            own = {option: one for option, one in each.items() if option != TARGET}
            offered = {n: one for n, one in given.items() if n in parameters_of(target)}
            yield from _entry_problems(target, key, at, own, offered, inner=True)
        yield from _inner_problems(each, at, given)


def make(part: Section, section: Section) -> Any:
    """The component of a section inside of another, built with the outer one by what that one
    builds; `build` has seen to it that it may be.
    """
    return _imported(part._target_)[0](section)  # type: ignore[attr-defined]


def _entry_problems(
    target: Target,
    key: str,
    path: str,
    keywords: Mapping[str, Any],
    runtime: Mapping[str, Any],
    *,
    inner: bool = False,
) -> list[Problem]:
    """inner: whether it is inside of the keywords of another, which may give it otherwise what
    forge would.
    """
    label, problems = _label(target), []
    args, is_partial = keywords.get(ARGS, []), keywords.get(PARTIAL, False)
    keywords = {name: value for name, value in keywords.items() if name not in (ARGS, PARTIAL)}
    if fault := _args_fault(target, args, {*keywords, *runtime}):
        return [Problem(f"{path}.{ARGS}", f"{label} {fault}.", "give them by name", rule="target")]
    by_place = _by_place(target, args)
    takes = [name for name in parameters_of(target) if name not in {*runtime, *by_place}]
    for name in sorted(keywords):
        at = f"{path}.{name}"
        if name in runtime and not inner:
            problems.append(Problem(at, f"{name} is given by forge.", f"~{at}", rule="target"))
        elif not _takes(target, name):
            meant = did_you_mean([f"{path}.{parameter}" for parameter in closest(name, takes)])
            fix = meant or f"it takes {', '.join(takes) or 'no keywords'}"
            problems.append(Problem(at, f"{label} does not take {name}.", fix, rule="target"))
    problems += _refused(target, key, runtime)
    given = {*keywords, *runtime, *by_place}
    if not problems and not (inner and is_partial) and (missing := _missing(target, given)):
        fix = " ".join(f"+{path}.{parameter}=..." for parameter in missing)
        what = f"{label} also needs {', '.join(missing)}."
        problems.append(Problem(key, what, fix, rule="target"))
    return problems


def _args_fault(target: Target, args: Any, keywords: Collection[str]) -> str:
    """What is wrong with arguments without names."""
    if not isinstance(args, list):
        return f"has a list of arguments in {ARGS}, and this is {args}"
    parameters, by_place = _signature(target), _by_place(target, args)
    more = parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if len(by_place) < len(args) and not more:
        return f"takes {len(by_place)} arguments without a name, not {len(args)}"
    twice = ", ".join(name for name in by_place if name in keywords)
    return f"is given {twice} twice" if twice else ""


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


def section_taken(target: Target) -> tuple[str, type[Section]] | None:
    """(name, class) of the parameter of a target that is annotated with a section's class."""
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (ValueError, TypeError, NameError):
        return None
    for name in parameters_of(target):
        hint = hints.get(name)
        if isinstance(hint, type) and issubclass(hint, Section):
            return name, hint
    return None


def signature_fault(target: Target, names: set[str]) -> str | None:
    """Which of the keywords a target does not accept, or which it misses; None when they fit."""
    extra = sorted(name for name in names if not _takes(target, name))
    if extra:
        return f"{_label(target)} does not take {', '.join(extra)}."
    missing = _missing(target, names)
    return f"{_label(target)} also needs {', '.join(missing)}." if missing else None


def parameters_of(target: Target) -> Mapping[str, inspect.Parameter]:
    """The parameters of a target; none where it does not tell."""
    return _signature(target) or {}


def _signature(target: Target) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a target; None where it does not tell, as some written in C do not."""
    try:
        return inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None


def _takes(target: Target, name: str) -> bool:
    parameters = _signature(target)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    found = parameters.get(name)
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def _missing(target: Target, names: set[str]) -> list[str]:
    return sorted(
        name
        for name, p in parameters_of(target).items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and name not in names
    )


def _label(target: Target) -> str:
    return getattr(target, "__qualname__", str(target))
