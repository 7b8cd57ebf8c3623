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
    group_of_path,
    inner_faults,
    of_torch,
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

    A target whose first parameter is annotated with a section class gets the section. Any other
    target, such as torch.optim.SGD, gets the section's fields as keywords, and so does the target
    of a mapping, an entry of a free dict such as `callbacks`. `runtime` arguments are always passed
    on, `offered` arguments only to parameters of the same name. `path`: the config path of the
    section, deciding on the admitted targets and named in errors.

    Raises ConfigError when the target may not be built at `path`, does not exist, or does not take
    the arguments.
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
    """All of `build` but the last call, left to the caller; raises as `build`.

    offered: further arguments, passed only to parameters of the same name.
    """
    by_key = isinstance(section, Mapping | Own)
    name = section[TARGET] if isinstance(section, Mapping) else section._target_
    target, key = locate(name, path=path, trust=trust), f"{path}.{TARGET}={name}"
    parameters = target_parameters(target)
    fields = _keywords(section, parameters)
    for inner, value in fields.items():
        if isinstance(value, Section) and (part := getattr(value, TARGET, "")):
            locate(part, path=f"{path}.{inner}", trust=trust)  # `build_part` checks nothing
    forge_arguments = dict(offered or {}) | ({SECTION: section} if isinstance(section, Own) else {})
    stated = fields if isinstance(section, Own) else {}  # a mapping stating one is refused
    runtime |= {
        name: value for name, value in forge_arguments.items() if name in parameters.keys() - stated
    }
    if not isinstance(section, Mapping) and (taken := section_taken(target)):
        parameter, takes = taken
        problems = _refused(target, key, runtime)
        if isinstance(section, Own) and not isinstance(section, takes):
            message = (
                f"{_label(target)} takes the section {takes.__name__}, and the file names none."
            )
            begin = f"defaults: [/schema/{path}@_here_: {takes.schema_name}, _self_]"
            problems = [Problem(key, message, f"begin the file with '{begin}'", rule="target")]
        if problems:
            raise ConfigError(problems)
        return partial(target, **(runtime | {parameter: section}))
    if by_key:
        faults = inner_faults(fields, path, trust)
        problems = [Problem(*fault, rule="target") for fault in faults]
        problems += _entry_problems(target, key, path, fields, runtime)
        problems = problems or list(_inner_problems(fields, path, forge_arguments))
    elif fault := signature_fault(target, {*fields, *runtime}):
        hint = "give the section the options that its target takes"
        problems = [Problem(key, fault, hint, rule="target")]
    else:
        problems = []
    if problems:
        raise ConfigError(problems)

    def call(**late: Any) -> Any:
        return _made(
            {TARGET: target, **fields, PARTIAL: False}, forge_arguments, **(runtime | late)
        )

    return call


def _keywords(section: Any, parameters: Collection[str]) -> dict[str, Any]:
    """The keywords that a section, or an entry of a dict, has for a target of these parameters."""
    if isinstance(section, Mapping):
        keywords = {option: thaw_value(value) for option, value in section.items()}
    elif isinstance(section, Own):
        keywords = section.keywords(parameters)
    else:
        names = [field.name for field in dataclasses.fields(section)]
        keywords = {
            name: getattr(section, name) for name in names if name not in section.forges_own
        }
    del keywords[TARGET]
    return keywords


def _made(value: Any, given: Mapping[str, Any], **more: Any) -> Any:
    """A value with every inner `_target_` built, innermost first.

    given: arguments passed to parameters of the same name. more: arguments of the outermost target.
    """
    if isinstance(value, list):
        return [_made(item, given) for item in value]
    if not isinstance(value, dict):
        return value
    arguments = {name: _made(item, given) for name, item in value.items()} | more
    if TARGET not in arguments:
        return arguments
    target, args = arguments.pop(TARGET), arguments.pop(ARGS, [])
    call = _imported(target)[0] if isinstance(target, str) else target
    if isinstance(target, str):
        taken = {*arguments, *_by_place(call, args)}
        missing = {name for name in target_parameters(call) if name not in taken}
        arguments |= {name: item for name, item in given.items() if name in missing}
    if arguments.pop(PARTIAL, False):
        return partial(call, *args, **arguments)
    return call(*args, **arguments)


def _by_place(target: Target, args: Sequence[Any]) -> list[str]:
    """Names of the parameters filled by positional arguments."""
    parameters = target_parameters(target).values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names[: len(args)]


def _inner_problems(value: Any, path: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of each `_target_` inside the keywords of another, all admitted already."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    for name, item in items:
        if not isinstance(item, list | dict):
            continue
        item_path = f"{path}.{name}"
        if isinstance(item, dict) and TARGET in item:
            inner, key = item[TARGET], f"{item_path}.{TARGET}={item[TARGET]}"
            target, fault = _imported(inner)
            slot = group_of_path(path.partition(".")[0])
            if fault is None and of_torch(inner, slot):
                fault = _kind_fault(target, inner, slot, ours=True)
            if fault is not None:
                yield Problem(key, *fault, rule="target")
                continue
            keywords = {option: argument for option, argument in item.items() if option != TARGET}
            offered = {
                n: argument for n, argument in given.items() if n in target_parameters(target)
            }
            yield from _entry_problems(target, key, item_path, keywords, offered, inner=True)
        yield from _inner_problems(item, item_path, given)


def build_part(part: Section, section: Section) -> Any:
    """Build the component of a section inside of `section`, called by the outer component; `build`
    has checked the inner target already.
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
    """Problems of a target's keywords. inner: the target is among the keywords of another target,
    free to pass forge's runtime arguments itself.
    """
    label, problems = _label(target), []
    args, is_partial = keywords.get(ARGS, []), keywords.get(PARTIAL, False)
    keywords = {name: value for name, value in keywords.items() if name not in (ARGS, PARTIAL)}
    if fault := _args_fault(target, args, {*keywords, *runtime}):
        return [Problem(f"{path}.{ARGS}", f"{label} {fault}.", "give them by name", rule="target")]
    by_place = _by_place(target, args)
    takes = [name for name in target_parameters(target) if name not in {*runtime, *by_place}]
    for name in sorted(keywords):
        option = f"{path}.{name}"
        if name in runtime and not inner:
            problems.append(
                Problem(option, f"{name} is given by forge.", f"~{option}", rule="target")
            )
        elif not _takes(target, name):
            meant = did_you_mean([f"{path}.{parameter}" for parameter in closest(name, takes)])
            hint = meant or f"it takes {', '.join(takes) or 'no keywords'}"
            problems.append(Problem(option, f"{label} does not take {name}.", hint, rule="target"))
    problems += _refused(target, key, runtime)
    filled = {*keywords, *runtime, *by_place}
    if not problems and not (inner and is_partial) and (missing := _missing(target, filled)):
        hint = " ".join(f"+{path}.{parameter}=..." for parameter in missing)
        message = f"{label} also needs {', '.join(missing)}."
        problems.append(Problem(key, message, hint, rule="target"))
    return problems


def _args_fault(target: Target, args: Any, keywords: Collection[str]) -> str:
    """The fault of positional arguments; '' where the target takes all of them."""
    if not isinstance(args, list):
        return f"has a list of arguments in {ARGS}, and this is {args}"
    parameters, by_place = _signature(target), _by_place(target, args)
    takes_any = parameters is None or any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if len(by_place) < len(args) and not takes_any:
        return f"takes {len(by_place)} arguments without a name, not {len(args)}"
    twice = ", ".join(name for name in by_place if name in keywords)
    return f"is given {twice} twice" if twice else ""


def _refused(target: Target, key: str, runtime: Mapping[str, Any]) -> list[Problem]:
    """The problem of a target that does not take forge's runtime arguments; empty without one."""
    refused = ", ".join(name for name in runtime if not _takes(target, name))
    message = f"{_label(target)} does not take {refused}, which forge gives it."
    return [Problem(key, message, f"add the parameter {refused}", rule="target")] if refused else []


def locate(name: str, *, path: str, trust: Sequence[str] = ()) -> Target:
    """Import the `_target_` of the section or entry at `path`, calling nothing.

    Raises ConfigError when the target is not admitted at `path`, missing, or of the wrong kind.
    """
    slot, attribute = group_of_path(path), None
    fault = target_fault(name, slot, trust)
    if fault is None:
        attribute, fault = _imported(name)
    if fault is None:
        fault = _kind_fault(attribute, name, slot, ours=not trusted(name, trust))
    if fault is not None:
        raise ConfigError(Problem(f"{path}._target_={name}", *fault, rule="target"))
    assert callable(attribute)
    return attribute


def _imported(name: str) -> tuple[Any, tuple[str, str] | None]:
    module, _, attribute = name.rpartition(".")
    try:
        value = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        return None, (f"{name} cannot be imported: {error}.", "check the path")
    except Exception as error:  # a package of the user's may raise anything
        return None, packages.explain_import(module, error)
    if not callable(value):
        return None, (f"{name} is not a class or function.", "check the path")
    return value, None


def _kind_fault(found: Any, name: str, place: str, *, ours: bool) -> tuple[str, str] | None:
    """(fault, hint) for an object of another kind than its place takes; None where the kind fits.

    ours: whether the target needs no trust.
    """
    from_torch = ours and of_torch(name, place)
    base = OF_TORCH[place] if from_torch else OF_USER.get(place)
    if base is None:
        return None
    if not isinstance(found, type) or not issubclass(found, _imported(base)[0]):
        return f"{name} is no subclass of {base}.", f"name one, or make it a subclass of {base}"
    home = f"{found.__module__}.{found.__qualname__}"
    if ours and home != name and not of_torch(home, place):
        message = f"{name} is only an import of {home}."
        return message, "name it where it is defined"
    return None


def section_taken(target: Target) -> tuple[str, type[Section]] | None:
    """(name, class) of a target's parameter annotated with a section class; None without one."""
    try:
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (ValueError, TypeError, NameError):
        return None
    for name in target_parameters(target):
        hint = hints.get(name)
        if isinstance(hint, type) and issubclass(hint, Section):
            return name, hint
    return None


def signature_fault(target: Target, names: set[str]) -> str | None:
    """The fault of keywords unknown to a target, or missing; None when all fit."""
    extra = sorted(name for name in names if not _takes(target, name))
    if extra:
        return f"{_label(target)} does not take {', '.join(extra)}."
    missing = _missing(target, names)
    return f"{_label(target)} also needs {', '.join(missing)}." if missing else None


def target_parameters(target: Target) -> Mapping[str, inspect.Parameter]:
    """Parameters of a target; an empty mapping without a readable signature."""
    return _signature(target) or {}


def _signature(target: Target) -> Mapping[str, inspect.Parameter] | None:
    """Parameters of a target; None without a readable signature, as for some functions in C."""
    try:
        return inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None


def _takes(target: Target, name: str) -> bool:
    parameters = _signature(target)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    parameter = parameters.get(name)
    return parameter is not None and parameter.kind in (
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    )


def _missing(target: Target, names: set[str]) -> list[str]:
    return sorted(
        name
        for name, p in target_parameters(target).items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and name not in names
    )


def _label(target: Target) -> str:
    return getattr(target, "__qualname__", str(target))
