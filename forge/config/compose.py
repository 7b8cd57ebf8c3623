"""Overrides to a typed, unresolved `Config`, collecting every problem on the way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from forge.config import overrides as values
from forge.config.errors import ConfigError, Problem, closest, did_you_mean
from forge.config.library import Library, parse
from forge.config.overrides import COMMAND_LINE
from forge.config.root import Config


@dataclass(kw_only=True)
class Composition:
    """A composed config with what it was made of; `problems` is empty when it is sound."""

    tree: DictConfig
    library: Library
    overrides: tuple[str, ...]
    choices: dict[str, str | None]
    files: list[tuple[str, str]]
    applied: dict[str, str]
    problems: list[Problem] = field(default_factory=list)

    def typed(self) -> Config:
        """The config as dataclasses. Call it on a sound composition."""
        config = OmegaConf.to_object(self.tree)
        assert isinstance(config, Config)
        config.__dict__["_overrides"] = self.overrides
        return config


def compose(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composition:
    """Compose the groups, then apply the values one by one.

    Group choices are composed in one pass; a wrong one is left out and reported. Values go on top in
    the order given, as Hydra has it, so that every wrong one is found and not only the first.
    """
    problems: list[Problem] = []
    parsed = [o for o in (_parse(text, problems) for text in overrides) if o is not None]
    hydra, parsed = _split(parsed, lambda o: o.is_hydra_override())
    search_path = [_as_source(d) for d in config_dirs]
    for override in hydra:
        search_path += _search_path(override, problems)
    library = Library(search_path)
    for path in library.missing_sources():
        problems.append(
            Problem(key="hydra.searchpath", what=f"there is no directory {path}.", fix="give an existing one", where=COMMAND_LINE)
        )
    chosen, assigned = _split(parsed, lambda o: library.is_group(o.key_or_group))
    chosen = [o for o in chosen if _legal_choice(o, library, problems)]
    tree, choices, files = _merge(library, chosen, problems)
    if tree.run.trust:
        where = "on the command line or in code only, so that no file can widen what is built"
        problems.append(Problem(key="run.trust", what="a file sets run.trust.", fix=f"set it {where}"))
    groups = library.groups()
    applied: dict[str, str] = {}
    for override in assigned:
        problem = values.apply(tree, override, groups)
        if problem is not None:
            problems.append(problem)
        else:
            applied[override.key_or_group] = override.input_line or ""
    problems += _incomplete(tree)
    return Composition(
        tree=tree, library=library, overrides=tuple(overrides), choices=choices, files=files, applied=applied, problems=problems
    )


def _parse(text: str, problems: list[Problem]) -> Override | None:
    try:
        return parse(text)
    except (HydraException, RecursionError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        fix = f"write {text}=value" if re.fullmatch(r"[\w./]+", text) else "quote the value: 'key=\"...\"'"
        problems.append(Problem(key=text, what=f"this is not key=value: {reason}", fix=fix, where=COMMAND_LINE))
        return None


def _split(items: list[Override], first) -> tuple[list[Override], list[Override]]:
    return [o for o in items if first(o)], [o for o in items if not first(o)]


def _as_source(path: str) -> str:
    return path if "://" in path else f"file://{Path(path).resolve()}"


def _search_path(override: Override, problems: list[Problem]) -> list[str]:
    if override.key_or_group == "hydra.searchpath":
        value = override.value()
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return [_as_source(str(v)) for v in value]
        what, fix = "hydra.searchpath is a list of directories.", "hydra.searchpath=[my/conf]"
    elif override.key_or_group in ("hydra.run.dir", "hydra.job.name"):
        ours = "run.dir" if override.key_or_group == "hydra.run.dir" else "run.name"
        what, fix = "forge makes its own run directory.", f"write {ours}={override.get_value_string()}"
    else:
        what, fix = "Hydra's own settings have no effect on a run of forge.", "of hydra.*, forge reads hydra.searchpath"
    problems.append(Problem(key=override.input_line or "", what=what, fix=fix, where=COMMAND_LINE))
    return []


def _legal_choice(override: Override, library: Library, problems: list[Problem]) -> bool:
    group, text = override.key_or_group, override.input_line or ""
    if override.is_delete():
        problems.append(
            Problem(
                key=text,
                what=f"the group {group} cannot be removed.",
                fix=f"choose one: {', '.join(library.options(group))}",
                where=COMMAND_LINE,
            )
        )
        return False
    if override.is_sweep_override():
        problems.append(
            Problem(key=text, what=f"{group} has several values, and this is not a sweep.", fix="choose one", where=COMMAND_LINE)
        )
        return False
    name, options = override.value(), library.options(group)
    if name is None and group in ("experiment", "debug", "local"):
        return True
    names = name if isinstance(name, list) else [name]
    for wanted in names:
        if str(wanted) in options:
            continue
        meant = [f"{group}={option}" for option in closest(str(wanted), options)]
        fix = did_you_mean(meant) or f"options: {', '.join(options)}"
        problems.append(Problem(key=text, what=f"there is no {group} named '{wanted}'.", fix=fix, where=COMMAND_LINE))
        return False
    return True


def _merge(
    library: Library, chosen: list[Override], problems: list[Problem]
) -> tuple[DictConfig, dict[str, str | None], list[tuple[str, str]]]:
    for override in chosen:
        if override.is_add() and override.key_or_group in library.groups():
            override.type = OverrideType.CHANGE  # `+group=x` and `group=x` say the same where the group has a place already
    try:
        defaults = library.defaults(chosen)
        tree = library.merge(defaults.defaults)
    except (HydraException, OmegaConfBaseException) as error:
        if not chosen:
            raise
        what = f"this does not compose: {_reason(error)}"
        problems.append(Problem(key=" ".join(o.input_line or "" for o in chosen), what=what, fix="correct the file that it names"))
        return _merge(library, [], problems)
    choices = {k: v for k, v in defaults.overrides.known_choices.items() if not k.startswith("schema")}
    files = [(d.config_path or "", d.package or "") for d in defaults.defaults if d.config_path]
    for key in values.undeclared(tree):
        problems.append(Problem(key=key, what="a file sets an option that its section does not have.", fix="remove it from the file"))
    return tree, choices, files


def _reason(error: BaseException) -> str:
    lines = [line.strip() for e in (error, error.__cause__) if e is not None for line in str(e).splitlines()]
    kept = []
    for line in lines:
        if line.startswith(("Search path", "provider=", "full_key", "reference_type", "object_type")):
            continue
        if line and line not in kept:
            kept.append(line)
    return " ".join(kept[:4])


def _incomplete(tree: DictConfig) -> list[Problem]:
    problems = [Problem(key=key, what="a value is missing.", fix=f"give one: {key}=...") for key in sorted(OmegaConf.missing_keys(tree))]
    if problems:
        return problems
    for key in values.option_keys(tree):
        try:
            OmegaConf.select(tree, key, throw_on_resolution_failure=True)
        except OmegaConfBaseException as error:
            problems.append(
                Problem(key=key, what=f"its interpolation fails: {str(error).splitlines()[0]}", fix="name an existing key in ${...}")
            )
    return problems


def config(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Config:
    """The config that groups and values compose to. Raises ConfigError with every problem."""
    composition = compose(overrides, config_dirs=config_dirs)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition.typed()
