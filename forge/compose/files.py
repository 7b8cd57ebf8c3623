"""A file that does not compose: which one, on which line, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from hydra.errors import MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    KeyValidationError,
    OmegaConfBaseException,
)

from forge.compose import expected
from forge.compose.engine import Library, Misfit
from forge.compose.lines import display, keys_of, nodes_of, value_of
from forge.compose.several import PARAMS
from forge.compose.tree import in_force
from forge.compose.unknown import unknown
from forge.config import schemas, spelling
from forge.config.problems import Problem, closest, did_you_mean, literal

NO_GROUP = re.compile(r"Could not override '([\w/]+)'. No match in the defaults list")
TWICE = re.compile(r"(?:schema/)?(\w+)@\w+ appears more than once|Multiple values for (\w+)\.")
GLOBAL = "# @package _global_"
NOT_TEXT = {"null": "null", "bool": "true or false", "int": "a number", "float": "a number"}
CORRECT = "correct the file"


def file_fault(choice: str, config_path: str, error: Exception, library: Library) -> Problem:
    """What is wrong with the files behind a group choice, from what Hydra raised while it composed
    them.

    `choice` is the choice as it was typed, `config_path` the file it names, unless the error names
    another.
    """
    named = re.search(r"In '([^']+)'", str(error))
    file = library.file_of(named[1] if named and named[1] != "config" else config_path)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{display(Path(mark.name))}:{mark.line + 1}" if mark else _place(file)
        return Problem(
            key=choice,
            what=f"the file is not YAML: {error.problem or error.context}.",
            fix=CORRECT,
            where=place,
        )
    if isinstance(error, UnicodeDecodeError):
        return Problem(
            key=choice, what="the file is not UTF-8 text.", fix=CORRECT, where=_place(file)
        )
    if isinstance(error, RecursionError):
        return Problem(
            key=choice,
            what="the defaults list leads back to this file.",
            fix=CORRECT,
            where=_place(file),
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(choice, error, file, library)
    if isinstance(error, KeyValidationError) and file is not None:
        for written, name, _ in nodes_of(file):
            if name.tag.endswith(":null"):
                what, fix = _misnamed(spelling.key_of(written.removesuffix(f".{name.value}")), name)
                return Problem(
                    key=choice,
                    what=what,
                    fix=fix,
                    where=f"{display(file)}:{name.start_mark.line + 1}",
                )
    owner = getattr(error.__context__, "object_type", None)
    if owner in schemas.bases():
        group = next(group for group in schemas.SCHEMAS if schemas.sections()[group] is owner)
        key = getattr(error.__context__, "full_key", "") or ""
        what = f"{owner.__name__} has no option '{key.rpartition('.')[2]}'."
        return Problem(key=choice, what=what, fix=_start_of_file(group), where=_place(file, key))
    if found := _of_defaults(str(error), library):
        return Problem(key=choice, what=found[0], fix=found[1], where=_place(file))
    said = re.sub(r"^In '[^']+': ", "", " ".join(str(error).split()))
    what = f"this does not compose: {shorten(said, 200).rstrip('.') or type(error).__name__}."
    return Problem(key=choice, what=what, fix=CORRECT, where=_place(file))


def section_fault(
    choice: str, config_path: str, group: str, schema: type | None, library: Library
) -> Problem:
    """A choice that leaves a section without a class of its own."""
    where = _place(library.file_of(config_path))
    if schema is None:
        return Problem(
            key=choice, what=f"this leaves no {group}.", fix=f"choose one: {group}=...", where=where
        )
    variants = ", ".join(schemas.SCHEMAS[group])
    what = f"the file of {group} does not say which of these it is: {variants}."
    return Problem(key=choice, what=what, fix=_start_of_file(group), where=where)


def _missing(
    choice: str, error: MissingConfigException, file: Path | None, library: Library
) -> Problem:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or ())
    own = group.rpartition("/")[2]
    if not options and own != group and library.is_group(own):
        fix = f"write '- override /{own}: {name}'"
        return Problem(
            key=choice,
            what=f"{own} is looked for beside this file, as '/' is missing.",
            fix=fix,
            where=_place(file),
        )
    what, fix = _no_option(group, name, options)
    return Problem(key=choice, what=what, fix=fix, where=_place(file))


def absent_fault(config_path: str, group: str, name: str, library: Library) -> Problem:
    """An option that the defaults list of a file chooses, and that is not there."""
    file = library.file_of(config_path)
    what, fix = _no_option(group, name, library.options(group))
    line = re.compile(rf"\s*-\s*override\s+/?{re.escape(group)}\s*:\s*['\"]?{re.escape(name)}\b")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    number = next((f":{at}" for at, text in enumerate(lines, start=1) if line.match(text)), "")
    above, _, option = config_path.rpartition("/")
    return Problem(key=f"{above}={option}", what=what, fix=fix, where=f"{_place(file)}{number}")


def _no_option(group: str, name: str, options: Sequence[str]) -> tuple[str, str]:
    if "," in name and all(part.strip() in options for part in name.split(",")):
        fix = f"one of them; a sweep over these is sweeper.params: {{{group}: '{name}'}}"
        return f"the file chooses one {group}, and '{name}' are several.", fix
    fix = did_you_mean([f"{group}: {option}" for option in closest(name, options)]) or (
        f"options: {', '.join(options)}" if options else ""
    )
    return f"there is no {group} named '{name}', which the file asks for.", fix


def value_fault(misfit: Misfit, library: Library, tree: DictConfig) -> Problem:
    """What is wrong with one value of a file, and on which line. tree: what was composed without
    it.
    """
    file = library.file_of(misfit.config_path)
    group, _, option = misfit.config_path.rpartition("/")
    choice, key, cause = f"{group}={option}", ".".join(map(str, misfit.keys)), misfit.cause
    name, node = _nodes(file, misfit) if file else (None, None)
    where = f"{display(file)}:{name.start_mark.line + 1}" if file and name else _place(file)
    if name is not None and not isinstance(misfit.keys[-1], str):
        what, fix = _misnamed(key.rpartition(".")[0], name)
    elif isinstance(cause, ConfigKeyError | ConfigAttributeError):
        what, fix = _unknown(misfit, library, key, node, tree)
    elif name is None or node is None:
        what, fix = f"{key}: {str(cause).splitlines()[0]}.", CORRECT
    elif schemas.is_section(key) and not isinstance(node, yaml.MappingNode):
        what, fix = (
            f"{key} is a section of options; {_shown(value_of(node))} is not.",
            _as_section(key, value_of(node), library),
        )
    else:
        what, fix = _mistyped(key, str(name.value), value_of(node), cause, tree)
    return Problem(key=choice, what=what, fix=fix, where=where)


def _misnamed(option: str, name: yaml.Node) -> tuple[str, str]:
    """What is said of the name of an entry that YAML reads as something else than a text."""
    read_as = NOT_TEXT.get(name.tag.rpartition(":")[2], "something else")
    return (
        f"the names in {option} are texts, and YAML reads {name.value} as {read_as}.",
        f"'{name.value}' in quotes",
    )


def _nodes(file: Path, misfit: Misfit) -> tuple[Any, Any]:
    """The nodes of the name and the value that a file has there; none where it is the file as a
    whole.
    """
    *above, last = map(str, misfit.keys)
    for written, name, node in nodes_of(file):
        ours = spelling.SECTIONS.get(written) or spelling.key_of(written)
        full = f"{misfit.package}.{ours}" if misfit.package else ours
        if full == ".".join([*above, last]) or (
            full.rpartition(".")[0] == ".".join(above) and value_of(name) == misfit.keys[-1] != last
        ):
            return name, node
    return None, None


def _unknown(
    misfit: Misfit, library: Library, key: str, node: yaml.Node | None, tree: DictConfig
) -> tuple[str, str]:
    """What is said of a name that no option has."""
    (above, _, name), owner = key.rpartition("."), misfit.cause.object_type
    if not misfit.in_file:
        return f"its values have no place under '{name}'.", f"start the file with {GLOBAL}"
    value = (
        (node.value if node.style is None else literal(node.value))
        if isinstance(node, yaml.ScalarNode)
        else ""
    )
    found = unknown(tree, key, library, value)
    if found is None:
        return (
            f"{getattr(owner, '__name__', key)} has no option '{name}'.",
            "remove it from the file",
        )
    return found.what, re.sub(
        rf"\b{re.escape(above)}\.(\w+)=([^\s?]+)", r"\1: \2", found.fix
    ) if found.meant else found.fix


def _as_section(section: str, value: Any, library: Library) -> str:
    """How a file sets a section, or chooses what is in it."""
    known = library.options(section) if library.is_group(section) else []
    wanted = value[0] if isinstance(value, list) and len(value) == 1 else value
    wanted = spelling.option(section, wanted) if isinstance(wanted, str) else wanted
    if wanted in known:
        return f"to choose it, '- override /{section}: {wanted}' in the defaults list"
    name, _, option = expected.below(section).removesuffix("=...").rpartition(".")
    below = f"its options go below it, like '{name.rpartition('.')[2]}: {{{option}: ...}}'"
    return (
        f"{below}; to choose one of {', '.join(known)}, '- override /{section}: ...' in the defaults list"
        if len(known) > 1
        else below
    )


def _of_defaults(said: str, library: Library) -> tuple[str, str] | None:
    """What is wrong with a defaults list that names a group which is not there, or one that is
    there already, and what to do.
    """
    if absent := NO_GROUP.search(said):
        meant = did_you_mean([f"override /{name}" for name in closest(absent[1], library.groups())])
        return f"there is no group {absent[1]} to override.", meant or CORRECT
    if twice := TWICE.search(said):
        group = twice[1] or twice[2]
        return (
            f"the defaults list chooses {group} again, which has been chosen.",
            f"write '- override /{group}: ...'",
        )
    return None


def _mistyped(
    key: str, name: str, value: Any, cause: OmegaConfBaseException, tree: DictConfig
) -> tuple[str, str]:
    """What is said of a value of another type than its option has."""
    hint = schemas.declared(key)
    if hint is None:
        return f"{key}: {str(cause).splitlines()[0]}.", CORRECT
    fix = _instead(key, name, value, expected.meant(key, value, hint), hint)
    if not fix and expected.example(key, hint, now := in_force(tree, key)):
        fix = f"for example {expected.in_file(name, now)}"
    return f"{key} is {expected.said(key, hint)}; {_shown(value)} is not.", fix or CORRECT


def _instead(key: str, name: str, value: Any, meant: Any, hint: Any) -> str:
    """How a file has what was probably meant by a value of another type; empty where there is no
    telling.
    """
    if meant is not None:
        return expected.in_file(name, meant)
    if isinstance(value, list) and len(value) == 1 and schemas.said(key, "verbatim"):
        return expected.in_file(name, f"[{value[0]}]")
    if several := expected.several(value, hint):
        of_sweep = f"one value; a sweep over these is sweeper.params: {{{key}: '{several}'}}"
        return (
            expected.in_file(name, value[0])
            if isinstance(value, list) and len(value) == 1
            else of_sweep
        )
    if key.startswith(f"{PARAMS}."):
        return f"{expected.in_file(name, 'A,B')}, or leave it out"
    return ""


def _shown(value: Any) -> str:
    return shorten(literal(value), 100)


def _start_of_file(group: str) -> str:
    return f"start the file with 'defaults: [/schema/{group}@_here_: {next(iter(schemas.SCHEMAS[group]))}, _self_]'"


def _place(file: Path | None, key: str = "") -> str:
    if file is None:
        return ""
    if key:
        for written, line in keys_of(file):
            if key == written or key.endswith(f".{written}"):
                return f"{display(file)}:{line}"
    return display(file)
