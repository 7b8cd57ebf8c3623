"""Group choices: which are legal, and what they compose to together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from forge.compose.engine import Library, Misfit, parse
from forge.compose.files import absent_fault, file_fault, section_fault, value_fault
from forge.config import schemas
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, closest, did_you_mean, shown

OPTIONAL = ("experiment", "debug", "local")
DEGREE = re.compile("(tp|pp|cp|ep)([0-9]+)")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What group choices compose to: the tree, the option chosen in each group, (config path,
    package) of every file, and what misfits.
    """

    tree: DictConfig
    choices: dict[str, str | None]
    files: list[tuple[str, str]]
    misfits: list[Misfit]


def illegal(override: Override, library: Library) -> Problem | None:
    """Why a group choice cannot be composed, or None."""
    group, text = override.key_or_group, override.input_line or ""

    def problem(what: str, fix: str) -> Problem:
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)

    options = library.options(group)
    if override.is_delete():
        return problem(f"the group {group} cannot be removed.", f"choose one: {', '.join(options)}")
    if override.is_sweep_override():
        return problem(
            f"{group} has several values, and this is not a sweep.", "choose one, or -m for a sweep"
        )
    value = override.value()
    if override.package is not None and group in library.places:
        return problem(
            f"{group} has one place in the config.", f"write {group}={override.get_value_string()}"
        )
    if value is None and group in OPTIONAL:
        return None
    if isinstance(value, dict):
        pairs = " ".join(f"{group}.{key}={inner}" for key, inner in value.items())
        return problem(
            f"{group} is chosen by name; its values are set one by one.",
            f"write {pairs}" if pairs else f"choose one: {', '.join(options)}",
        )
    if isinstance(value, list) and group in schemas.SCHEMAS:
        several = ",".join(map(shown, value))
        return problem(
            f"{group} takes one option.",
            f"one of them, or {group}={several} with -m" if len(value) > 1 else "choose one",
        )
    for wanted in value if isinstance(value, list) else [value]:
        name = shown(wanted)
        if name not in options and (
            ".." in name.split("/") or library.file_of(f"{group}/{name}") is None
        ):
            meant = _as_values(group, name) or [
                f"{group}={option}" for option in closest(name, options)
            ]
            return problem(
                f"there is no {group} named '{name}'.",
                did_you_mean(meant) or f"options: {', '.join(options)}",
            )
    if group not in library.places and not override.is_add():
        return problem(
            f"{group} has no place of its own in the config.", f"write +{text.lstrip('+')}"
        )
    return None


def _as_values(group: str, name: str) -> list[str]:
    """What is typed for a path in the place of an option, or for a layout that no file has."""
    if group == "parallel" and (degree := DEGREE.fullmatch(name)):
        return [f"parallel.{degree[1]}={degree[2]}"]
    taking = [
        option
        for option, schema in schemas.SCHEMAS.get(group, {}).items()
        if "path" in schema.__dataclass_fields__
    ]
    return (
        [f"{group}={option} {group}.path={name}" for option in taking]
        if re.search("[./]", name)
        else []
    )


def merge(library: Library, chosen: Sequence[Override]) -> tuple[Merged, list[Problem]]:
    """Compose the choices; one that does not compose is left out and reported.

    Raises ConfigError when nothing composes at all.
    """
    chosen = _effective(chosen, library)
    merged = _compose(library, chosen)
    if isinstance(merged, Merged):
        return merged, _faults(merged, library)
    kept, problems = [], []
    merged = _compose(library, kept)
    if isinstance(merged, Problem):
        raise ConfigError([merged])
    for override in chosen:
        attempt = _compose(library, [*kept, override])
        if isinstance(attempt, Problem):
            problems.append(attempt)
        else:
            kept.append(override)
            merged = attempt
    return merged, [*problems, *_faults(merged, library)]


def _faults(merged: Merged, library: Library) -> list[Problem]:
    """What is wrong with files that compose without it: options that they choose and that are not
    there, and values.
    """
    absent = [
        absent_fault(path, group, name, library)
        for path, _ in merged.files
        for group, name in library.absent(path)
    ]
    return [*absent, *(value_fault(misfit, library, merged.tree) for misfit in merged.misfits)]


def _effective(chosen: Sequence[Override], library: Library) -> list[Override]:
    """The choices as Hydra takes them: null removes a group; `+group=x` says `group=x` where the
    group has a place.
    """
    result: list[Override] = []
    for override in chosen:
        group = override.key_or_group
        result = [
            other
            for other in result
            if other.key_or_group != group or other.package != override.package
        ]
        if override.value() is None:
            override = parse(f"~{group}")
        elif override.type is not OverrideType.CHANGE and group in library.places:
            override.type = OverrideType.CHANGE
        result.append(override)
    return result


def _compose(library: Library, chosen: Sequence[Override]) -> Merged | Problem:
    """What the choices compose to; a problem is blamed on the last of them, or on conf/local when
    there is none.
    """
    last = chosen[-1] if chosen else parse("local=default")
    text = last.input_line or ""
    name = last.value() if not last.is_delete() else None
    config_path = f"{last.key_or_group}/{name[0] if isinstance(name, list) and name else name}"
    try:
        defaults = library.defaults(list(chosen))
        tree, misfits = library.merge(defaults.defaults)
    except Exception as error:  # Hydra meets malformed files with whatever they make it raise
        return file_fault(text, config_path, error, library)
    for group, base in schemas.sections().items():
        schema = None if OmegaConf.is_missing(tree, group) else OmegaConf.get_type(tree, group)
        if schema is None or (group in schemas.SCHEMAS and schema is base):
            return section_fault(text, config_path, group, schema, library)
    choices = {
        k: v for k, v in defaults.overrides.known_choices.items() if not k.startswith("schema")
    }
    files = [
        (default.config_path, default.package or "")
        for default in defaults.defaults
        if default.config_path
    ]
    return Merged(tree=tree, choices=choices, files=files, misfits=misfits)
