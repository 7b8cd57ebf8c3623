"""Group choices: which are legal, and what they compose to together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omegaconf import DictConfig, OmegaConf

from forge.compose.aliases import BY_VALUE
from forge.compose.engine import PRIMARY, Composed, Library, Misfit
from forge.compose.files import (
    absent_fault,
    file_fault,
    primary_fault,
    section_fault,
    value_fault,
)
from forge.compose.hydra_adapter import Override, OverrideType, parse_override
from forge.compose.unknown import as_values
from forge.config import schemas
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, closest, did_you_mean, shown

OPTIONAL = ("recipe", "experiment", "debug", "local")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A composition of group choices: the tree, the option of each group, (config path, package) of
    every file, and the values without a place.
    """

    tree: DictConfig
    choices: dict[str, str | None]
    files: list[tuple[str, str]]
    misfits: list[Misfit]


def illegal(override: Override, library: Library) -> Problem | None:
    """Why a group choice cannot be composed, or None."""
    fault = _fault(override, library)
    return Problem(override.input_line or "", *fault, where=COMMAND_LINE) if fault else None


def _fault(override: Override, library: Library) -> tuple[str, str] | None:
    group = override.key_or_group
    options = library.options(group)
    listed = ", ".join(options)
    if override.is_delete():
        return f"the group {group} cannot be removed.", f"choose one: {listed}"
    if override.is_sweep_override():
        message = f"{group} has several values, and this is not a sweep."
        return message, "choose one, or -m for a sweep"
    value = override.value()
    if group in schemas.INNER and (override.package is None or not override.is_add()):
        message = f"{group} is a part of another section."
        return message, f"write +{group}@model.{group}={override.get_value_string()}"
    if override.package is not None and group in library.places:
        message = f"{group} has one place in the config."
        return message, f"write {group}={override.get_value_string()}"
    if value is None and group in OPTIONAL:
        return None
    if isinstance(value, list) and group in schemas.SCHEMAS:
        return f"{group} takes one option.", "choose one, or -m for a sweep"
    for choice in value if isinstance(value, list) else [value]:
        name = shown(choice)
        is_file = ".." not in name.split("/") and library.file_of(f"{group}/{name}") is not None
        if name not in options and not is_file:
            near = [f"{group}={option}" for option in closest(name, options)]
            in_forge = [ours] if (ours := BY_VALUE.get(group, {}).get(name)) else []
            hint = did_you_mean(in_forge or as_values(group, name) or near) or f"options: {listed}"
            return f"there is no {group} named '{name}'.", hint
    if group not in library.places and not override.is_add():
        text = (override.input_line or "").lstrip("+")
        return f"{group} has no place of its own in the config.", f"write +{text}"
    return None


def merge_choices(
    library: Library, chosen: Sequence[Override], primary: str
) -> tuple[Merged, list[Problem]]:
    """Compose the choices over the config `primary`; a choice failing to compose is left out and
    reported. Raises ConfigError when nothing composes at all.
    """
    chosen = _effective(chosen, library)
    problems: list[Problem] = []
    merged = _compose(library, chosen, primary)
    if isinstance(merged, Problem):
        composable: list[Override] = []
        merged = _compose(library, composable, primary)
        if isinstance(merged, Problem):
            raise ConfigError([merged])
        for override in chosen:
            attempt = _compose(library, [*composable, override], primary)
            if isinstance(attempt, Problem):
                problems.append(attempt)
            else:
                composable.append(override)
                merged = attempt
    for path, _ in merged.files:
        problems += [absent_fault(path, *choice, library) for choice in library.absent(path)]
    problems += [value_fault(misfit, library, merged.tree) for misfit in merged.misfits]
    return merged, problems


def _effective(chosen: Sequence[Override], library: Library) -> list[Override]:
    """The choices in Hydra's form: the last of each group, null as a removal."""
    result: dict[tuple[str, str | None], Override] = {}
    for override in chosen:
        group = override.key_or_group
        if override.value() is None:
            override = parse_override(f"~{group}")
        elif group in library.places:
            override = replace(override, type=OverrideType.CHANGE)
        key = (group, override.package)
        result.pop(key, None)
        result[key] = override
    return list(result.values())


def _compose(library: Library, chosen: Sequence[Override], primary: str) -> Merged | Problem:
    """Compose the choices, or return the problem, blamed on the last choice, else on a primary
    config of the user, else on conf/local.
    """
    text, config_path = _blamed(chosen, primary)
    try:
        defaults = library.defaults(list(chosen), primary)
        tree, misfits = library.merge(defaults.defaults)
    except Exception as error:  # Hydra raises anything for malformed files
        return file_fault(text, config_path, error, library)
    chosen_by_group = defaults.overrides.known_choices.items()
    choices = {group: name for group, name in chosen_by_group if not group.startswith("schema")}
    sections = (name for name in library.places if name in schemas.sections())
    lacking = [name for name in sections if name not in choices]
    if primary != PRIMARY and (lacking or OmegaConf.get_type(tree) is not Composed):
        return primary_fault(primary, lacking, library)
    for group, base in schemas.sections().items():
        schema = None if OmegaConf.is_missing(tree, group) else OmegaConf.get_type(tree, group)
        if schema is None or (group in schemas.SCHEMAS and schema is base):
            return section_fault(text, config_path, group, schema, library)
    files = [(d.config_path, d.package or "") for d in defaults.defaults if d.config_path]
    return Merged(tree=tree, choices=choices, files=files, misfits=misfits)


def _blamed(chosen: Sequence[Override], primary: str) -> tuple[str, str]:
    """The text to blame for a problem, as typed, and the file behind the text."""
    if not chosen and primary != PRIMARY:
        return f"--config-name {primary}", primary
    last = chosen[-1] if chosen else parse_override("local=default")
    name = last.value() if not last.is_delete() else None
    option = name[0] if isinstance(name, list) and name else name
    return last.input_line or "", f"{last.key_or_group}/{option}"
