"""A file that does not compose: which one, on which line, why, and what to do."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from forge.config import expected, schemas, spelling
from forge.config.errors import Problem, closest, did_you_mean
from forge.config.library import Library
from forge.config.lines import display, keys_of, nodes_of, value_of
from forge.config.literal import literal
from forge.config.root import Config
from forge.config.several import PARAMS

NO_GROUP = re.compile(r"Could not override '([\w/]+)'. No match in the defaults list")
TWICE = re.compile(r"(?:schema/)?(\w+)@\w+ appears more than once|Multiple values for (\w+)\.")
GLOBAL = "# @package _global_"
NOT_TEXT = {"null": "null", "bool": "true or false", "int": "a number", "float": "a number"}
CORRECT = "correct the file"


def file_fault(choice: str, config_path: str, error: Exception, library: Library) -> Problem:
    """What is wrong with the files behind a group choice, from what Hydra raised while it composed them.

    `choice` is the choice as it was typed, `config_path` the file it names, unless the error names another.
    """
    named = re.search(r"In '([^']+)'", str(error))
    file = library.file_of(named[1] if named and named[1] != "config" else config_path)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{display(Path(mark.name))}:{mark.line + 1}" if mark else _place(file)
        return Problem(key=choice, what=f"the file is not YAML: {error.problem or error.context}.", fix=CORRECT, where=place)
    if isinstance(error, UnicodeDecodeError):
        return Problem(key=choice, what="the file is not UTF-8 text.", fix=CORRECT, where=_place(file))
    if isinstance(error, RecursionError):
        return Problem(key=choice, what="the defaults list leads back to this file.", fix=CORRECT, where=_place(file))
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(choice, error, file, library)
    cause = error.__context__
    if isinstance(cause, OmegaConfBaseException):
        return _misfit(choice, config_path, cause, file, library)
    if found := _of_defaults(str(error), library):
        return Problem(key=choice, what=found[0], fix=found[1], where=_place(file))
    said = re.sub(r"^In '[^']+': ", "", " ".join(str(error).split()))
    what = f"this does not compose: {shorten(said, 200).rstrip('.') or type(error).__name__}."
    return Problem(key=choice, what=what, fix=CORRECT, where=_place(file))


def section_fault(choice: str, config_path: str, group: str, schema: type | None, library: Library) -> Problem:
    """A choice that leaves a section without a class of its own."""
    where = _place(library.file_of(config_path))
    if schema is None:
        return Problem(key=choice, what=f"this leaves no {group}.", fix=f"choose one: {group}=...", where=where)
    variants = ", ".join(schemas.SCHEMAS[group])
    what = f"the file of {group} does not say which of these it is: {variants}."
    return Problem(key=choice, what=what, fix=_start_of_file(group), where=where)


def _missing(choice: str, error: MissingConfigException, file: Path | None, library: Library) -> Problem:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = list(error.options or ())
    own = group.rpartition("/")[2]
    if not options and own != group and library.is_group(own):
        fix = f"write '- override /{own}: {name}'"
        return Problem(key=choice, what=f"{own} is looked for beside this file, as '/' is missing.", fix=fix, where=_place(file))
    if "," in name and all(part.strip() in options for part in name.split(",")):
        fix = f"one of them; a sweep over these is sweeper.params: {{{group}: '{name}'}}"
        return Problem(key=choice, what=f"the file chooses one {group}, and '{name}' are several.", fix=fix, where=_place(file))
    fix = did_you_mean([f"{group}: {option}" for option in closest(name, options)]) or (f"options: {', '.join(options)}" if options else "")
    return Problem(key=choice, what=f"there is no {group} named '{name}', which the file asks for.", fix=fix, where=_place(file))


def _misfit(choice: str, config_path: str, cause: OmegaConfBaseException, file: Path | None, library: Library) -> Problem:
    key, owner = cause.full_key or "", cause.object_type
    where = _place(file, key)
    if not isinstance(cause, ConfigKeyError | ConfigAttributeError):
        if file is not None and (found := _in_file(choice, config_path, key, file, library)):
            return found
        what = f"{key}: {str(cause).splitlines()[0]}." if key else f"{str(cause).splitlines()[0]}."
        return Problem(key=choice, what=what, fix=CORRECT, where=where)
    name = str(cause.key)
    base = next((group for group, schema in schemas.sections().items() if group in schemas.SCHEMAS and schema is owner), None)
    if owner is Config and file is not None and file.parent.name == name:
        return Problem(key=choice, what=f"its values have no place under '{name}'.", fix=f"start the file with {GLOBAL}", where=where)
    what = f"there is no group or option '{name}'." if owner is Config else f"{getattr(owner, '__name__', key)} has no option '{name}'."
    if base is not None:
        return Problem(key=choice, what=what, fix=_start_of_file(base), where=where)
    fields = [f.name for f in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    elsewhere = [option for option, *_ in schemas.walk_options() if option.endswith(f".{name}")]
    fix = did_you_mean(closest(name, fields)) or did_you_mean(list(dict.fromkeys(elsewhere))[:3]) or "remove it from the file"
    return Problem(key=choice, what=what, fix=fix, where=where)


def _in_file(choice: str, config_path: str, key: str, file: Path, library: Library) -> Problem | None:
    return _misnamed(choice, file) or _no_section(choice, config_path, key, file, library) or _mistyped(choice, config_path, key, file)


def _misnamed(choice: str, file: Path) -> Problem | None:
    """The name of an entry of an option that YAML reads as something else than a text."""
    for written, name, _ in nodes_of(file):
        read_as = NOT_TEXT.get(name.tag.rpartition(":")[2])
        option = spelling.key_of(written.removesuffix(f".{name.value}"))
        if read_as and typing.get_origin(schemas.declared(option)) is dict:
            what = f"the names in {option} are texts, and YAML reads {name.value} as {read_as}."
            return Problem(key=choice, what=what, fix=f"'{name.value}' in quotes", where=f"{display(file)}:{name.start_mark.line + 1}")
    return None


def _no_section(choice: str, config_path: str, key: str, file: Path, library: Library) -> Problem | None:
    """A section that is given as something else than its options. key: of it, where Hydra says it."""
    group = config_path.partition("/")[0]
    for written, name, node in nodes_of(file):
        ours = spelling.SECTIONS.get(written) or spelling.key_of(written)
        full = next((section for section in (ours, f"{group}.{written}") if schemas.is_section(section)), "")
        if not full or isinstance(node, yaml.MappingNode) or (value := value_of(node)) == "???" or key not in ("", full):
            continue
        what = f"{full} is a section of options; {_shown(value)} is not."
        return Problem(key=choice, what=what, fix=_as_section(full, value, library), where=f"{display(file)}:{name.start_mark.line + 1}")
    return None


def _as_section(section: str, value: Any, library: Library) -> str:
    """How a file sets a section, or chooses what is in it."""
    known = library.options(section) if library.is_group(section) else []
    wanted = value[0] if isinstance(value, list) and len(value) == 1 else value
    wanted = spelling.option(section, wanted) if isinstance(wanted, str) else wanted
    if wanted in known:
        return f"to choose it, '- override /{section}: {wanted}' in the defaults list"
    name, _, option = expected.below(section).removesuffix("=...").rpartition(".")
    below = f"its options go below it, like '{name.rpartition('.')[2]}: {{{option}: ...}}'"
    return f"{below}; to choose one of {', '.join(known)}, '- override /{section}: ...' in the defaults list" if len(known) > 1 else below


def _of_defaults(said: str, library: Library) -> tuple[str, str] | None:
    """What is wrong with a defaults list that names a group which is not there, or one that is there already, and what to do."""
    if absent := NO_GROUP.search(said):
        meant = did_you_mean([f"override /{name}" for name in closest(absent[1], library.groups())])
        return f"there is no group {absent[1]} to override.", meant or CORRECT
    if twice := TWICE.search(said):
        group = twice[1] or twice[2]
        return f"the defaults list chooses {group} again, which has been chosen.", f"write '- override /{group}: ...'"
    return None


def _mistyped(choice: str, config_path: str, key: str, file: Path) -> Problem | None:
    """A value of another type than its option has. key: of the option; empty for the first with a list for a dict, or the reverse."""
    group = config_path.partition("/")[0]
    for written, name, node in nodes_of(file):
        full = next((k for k in (spelling.key_of(written), f"{group}.{written}") if schemas.declared(k) is not None), "")
        if not full:
            continue
        hint, value = schemas.declared(full), value_of(node)
        wrong = (
            full == key.partition("[")[0] if key else isinstance(value, list | dict) and typing.get_origin(hint) not in (None, type(value))
        )
        if not wrong:
            continue
        meant = expected.meant(full, value, hint)
        fix = _instead(full, str(name.value), value, meant, hint)
        what = f"{full} is {expected.said(full, hint)}; {_shown(value)} is not."
        return Problem(key=choice, what=what, fix=fix, where=f"{display(file)}:{name.start_mark.line + 1}")
    return None


def _instead(key: str, name: str, value: Any, meant: Any, hint: Any) -> str:
    """How a file has what was probably meant by a value of another type."""
    if meant is not None:
        return expected.in_file(name, meant)
    if isinstance(value, list) and len(value) == 1 and schemas.said(key, "verbatim"):
        return expected.in_file(name, f"[{value[0]}]")
    if several := expected.several(value, hint):
        of_sweep = f"one value; a sweep over these is sweeper.params: {{{key}: '{several}'}}"
        return expected.in_file(name, value[0]) if isinstance(value, list) and len(value) == 1 else of_sweep
    if key.startswith(f"{PARAMS}."):
        return f"{expected.in_file(name, 'A,B')}, or leave it out"
    return CORRECT


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
