"""A file that does not compose: which one, on which line, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from hydra.errors import MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from forge.compose import values
from forge.compose.engine import PRIMARY, Library, Misfit
from forge.compose.origin import display, line_of, node_value, nodes_of
from forge.compose.tree import value_in_force
from forge.compose.unknown import Fault, Keys
from forge.config import hydra_names, schemas
from forge.config.problems import Problem, closest, did_you_mean, literal
from forge.config.targets import own

CORRECT = "correct the file"
OVERRIDDEN = re.compile(r"(?:not override|Group Default for) '/?([\w/]+?)(?:@([\w.]*))?'")
"""How Hydra, 1.3 and 1.4, names what a defaults list overrides for nothing."""
GLOBAL = re.compile(r"^\s*#\s*@package\s+_global_\s*$", re.MULTILINE)


def file_fault(choice: str, config_path: str, error: Exception, library: Library) -> Problem:
    """The problem of the files behind a group choice, from Hydra's error. choice: as typed.
    config_path: the file, unless the error names another file.
    """
    path_match = re.search(r"In '([^']+)'", str(error))
    file = library.file_of(
        path_match[1] if path_match and path_match[1] != "config" else config_path
    )
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{display(Path(mark.name))}:{mark.line + 1}" if mark else _place(file)
        message = f"the file is not YAML: {error.problem or error.context}."
        return Problem(choice, message, CORRECT, where=where)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return Problem(choice, *_missing(error, library), where=_place(file))
    owner = getattr(error.__cause__, "object_type", None)
    if owner in schemas.bases():
        group = next(group for group in schemas.SCHEMAS if schemas.sections()[group] is owner)
        return Problem(choice, *_no_schema(group), where=_place(file))
    if isinstance(error, RecursionError):
        message = "its defaults lists go round in a circle, or it is nested too deep."
        return Problem(choice, message, CORRECT, where=_place(file))
    if fault := _override_fault(str(error), file, library):
        return Problem(choice, *fault, where=_place(file))
    cause = re.sub(r"^In '[^']+': ", "", " ".join(str(error).split()))
    message = f"this does not compose: {shorten(cause, 200).rstrip('.') or type(error).__name__}."
    return Problem(choice, message, CORRECT, where=_place(file))


def _override_fault(said: str, file: Path | None, library: Library) -> Fault | None:
    """The fault of an `override` entry without a match in a defaults list; None without one."""
    if twice := re.search(r"Multiple values for ([\w/]+)\. (?:.*'override [\w/@.]+: (.+)')?", said):
        message = f"{twice[1]} is chosen before, by the config that this one begins with."
        return message, f"write '- override /{twice[1]}: {twice[2] or '...'}'"
    overridden = OVERRIDDEN.search(said)
    if overridden is None:
        return None
    group, package = overridden[1].rpartition("/")[2], overridden[2]
    above = overridden[1].removesuffix(group).strip("/")
    message = f"'override {group}' stands for {group} in this file's own place, which has none."
    if file and package and above != package and not GLOBAL.search(file.read_text("utf-8")):
        return message, "start the file with # @package _global_"
    if library.is_group(group) and (above or package):
        return message, f"write '- override /{group}: ...', with / before it"
    if library.is_group(group):
        message = f"it overrides {group}, which nothing before it chooses."
        return message, f"write '- /{group}: ...', without override"
    near = [f"- override /{option}: ..." for option in closest(group, library.groups())]
    return f"there is no {group} to override.", did_you_mean(near) or "leave it out"


def section_fault(
    choice: str, config_path: str, group: str, schema: type | None, library: Library
) -> Problem:
    """The problem of a choice leaving a section without its own class."""
    where = _place(library.file_of(config_path))
    if schema is None:
        return Problem(choice, f"this leaves no {group}.", f"choose one: {group}=...", where=where)
    return Problem(choice, *_no_schema(group), where=where)


def primary_fault(name: str, lacking: Sequence[str], library: Library) -> Problem:
    """The problem of an incomplete config in place of conf/config.yaml. lacking: missing groups."""
    first = f"- {PRIMARY}"
    message = f"it is a whole config, and does not have forge's: its defaults lack '{first}'."
    if lacking:
        remainder = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        message = f"it is a whole config, and chooses no {', '.join(lacking[:3])}{remainder}."
    hint = (
        f"let its defaults begin with '{first}', which has every group; after it "
        "'- override /model: tiny' chooses another option"
    )
    return Problem(f"--config-name {name}", message, hint, where=_place(library.file_of(name)))


def absent_fault(config_path: str, group: str, name: str, library: Library) -> Problem:
    """The problem of a missing option chosen by a file's defaults list."""
    file = library.file_of(config_path)
    line = re.compile(rf"\s*-\s*override\s+/?{re.escape(group)}\s*:\s*['\"]?{re.escape(name)}\b")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    number = next((f":{n}" for n, text in enumerate(lines, start=1) if line.match(text)), "")
    fault = _no_option(group, name, library.options(group))
    return Problem(_choice(config_path), *fault, where=_place(file) + number)


def value_fault(misfit: Misfit, library: Library, tree: DictConfig) -> Problem:
    """The problem of a single value in a file. tree: the config composed without the value."""
    file = library.file_of(misfit.config_path)
    key, cause = ".".join(map(str, misfit.keys)), misfit.cause
    above, _, last = key.rpartition(".")
    name, node = _nodes(file, misfit) if file else (None, None)
    where = _place(file) + (f":{line_of(name)}" if name else "")
    hint = schemas.declared_type(key)
    value = node_value(node) if node else None
    if misfit.is_whole_file:
        message = f"its values have no place under '{key}'."
        fault = message, "start the file with # @package _global_"
    elif name and not isinstance(misfit.keys[-1], str):
        message = f"the names in {above} are texts, and YAML reads {name.value} as something else."
        fault = message, f"'{name.value}' in quotes"
    elif isinstance(cause, ConfigKeyError | ConfigAttributeError):
        fault = _unknown(key, node, library, tree)
    elif node and schemas.is_section(key) and not isinstance(node, yaml.MappingNode):
        message = f"{key} is a section of options; {shorten(literal(value), 100)} is not."
        fault = message, _as_section(key, value, library)
    elif name and hint is not None:
        text, as_entry = shorten(literal(value), 100), partial(_entry, str(name.value))
        now = value_in_force(tree, key)
        message, advice = values.mistyped(key, text, value, hint, now, as_entry)
        fault = message, advice or CORRECT
    else:
        fault = f"{last}: {str(cause).splitlines()[0]}.", CORRECT
    return Problem(_choice(misfit.config_path), *fault, where=where)


def _choice(config_path: str) -> str:
    group, _, option = config_path.rpartition("/")
    return f"{group}={option}" if group else f"--config-name {option}"


def _nodes(file: Path, misfit: Misfit) -> tuple[Any, Any]:
    """The nodes of a misfit's name and value in a file; (None, None) for a whole file."""
    *above, last = misfit.keys
    for written, name, node in nodes_of(file):
        ours = hydra_names.SECTIONS.get(written) or hydra_names.translate_key(written)
        full = f"{misfit.package}.{ours}" if misfit.package else ours
        is_above = full.removesuffix(f".{name.value}") == ".".join(map(str, above))
        if full == ".".join(map(str, misfit.keys)) or (is_above and node_value(name) == last):
            return name, node
    return None, None


def _unknown(key: str, node: Any, library: Library, tree: DictConfig) -> Fault:
    """The fault of a name without an option."""
    above = key.rpartition(".")[0]
    value = ""
    if isinstance(node, yaml.ScalarNode):
        value = node.value if node.style is None else literal(node.value)
    message, hint = Keys(tree, library).unknown(key, value) or (
        f"{key} has no place here.",
        CORRECT,
    )
    return message, re.sub(rf"\b{re.escape(above)}\.(\w+)=([^\s?]+)", r"\1: \2", hint)


def _as_section(section: str, value: Any, library: Library) -> str:
    """Advice on setting a section in a file, or on choosing its option."""
    option = hydra_names.translate_option(section, str(value))
    if library.is_group(section) and option in library.options(section):
        return f"to choose it, '- override /{section}: {option}' in the defaults list"
    return f"its options go below it, like {values.option_below(section)}"


def _missing(error: MissingConfigException, library: Library) -> Fault:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    group_name = group.rpartition("/")[2]
    if not error.options and group_name != group and library.is_group(group_name):
        message = f"{group_name} is looked for beside this file, as '/' is missing."
        return message, f"write '- override /{group_name}: {name}'"
    return _no_option(group, name, list(error.options or ()))


def _no_option(group: str, name: str, options: Sequence[str]) -> Fault:
    if not group:
        return f"there is no file {name}.yaml, which the file asks for.", "leave it out"
    hint = did_you_mean([f"{group}: {option}" for option in closest(name, options)])
    listed = f"options: {', '.join(options)}" if options else "leave it out"
    return f"there is no {group} named '{name}', which the file asks for.", hint or listed


def _entry(name: str, value: Any) -> str:
    """An entry in YAML."""
    text = yaml.safe_dump({name: value}, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip()[1:-1]


def _no_schema(group: str) -> Fault:
    variants = list(schemas.SCHEMAS[group])
    message = f"the file of {group} does not say which of these it is: {', '.join(variants)}."
    defaults = f"start the file with 'defaults: [/schema/{group}@_here_: {variants[0]}, _self_]'"
    if group not in own.GIVEN:
        return message, defaults
    target = {"optimizer": "torch.optim.SGD"}.get(group, "mypkg.Mine")
    return message, f"name what is built, '_target_: {target}', or {defaults}"


def _place(file: Path | None) -> str:
    return display(file) if file else ""
