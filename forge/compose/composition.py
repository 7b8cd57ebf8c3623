"""Overrides to a typed, unresolved `Config`, with every problem on the way."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from forge.compose import choices as groups
from forge.compose import overrides as values
from forge.compose import resolvers
from forge.compose.engine import PRIMARY, Composed, Library
from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import CONF, Override
from forge.compose.origin import default_origin, display, file_lines
from forge.compose.project import Default
from forge.compose.unknown import Keys
from forge.config.hydra_names import translate
from forge.config.model.hub_folder import FolderDecoder
from forge.config.problems import (
    COMMAND_LINE,
    ConfigError,
    Problem,
    closest,
    did_you_mean,
    quoted,
)
from forge.config.targets import packages

OF_HYDRA = (
    "of hydra.*, forge reads hydra.searchpath, and of a sweep hydra/launcher, hydra.launcher.*, "
    "hydra/sweeper and hydra.sweeper.*"
)
CONFIG_NAME = "hydra.job.config_name"
OWN_DIRECTORIES = {
    "hydra.run.dir": "run.dir",
    "hydra.job.name": "run.name",
    "hydra.sweep.dir": "sweep.root",
    "hydra.sweep.subdir": "sweep.name",
}


@dataclass(kw_only=True)
class Composition:
    """A composed config with its sources and problems. given: by key the file of the values read by
    model=hf.
    """

    tree: DictConfig
    library: Library
    overrides: tuple[str, ...]
    choices: dict[str, str | None]
    files: list[tuple[str, str]]
    facts: dict[str, Any]
    config_dirs: tuple[str, ...] = ()
    applied: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @cached_property
    def said_in(self) -> dict[str, str]:
        """File and line of every override in the project file."""
        return {
            str(override): override.where
            for override in self.overrides
            if isinstance(override, Default)
        }

    @cached_property
    def lines(self) -> dict[str, str]:
        """File and line of every value set by a file of this composition."""
        return file_lines(self.library, self.files)

    def written_at(self, key: str) -> str:
        """'command line', or the file and line setting a key or the first key below; else ''."""
        for done, text in self.applied.items():
            if f"{key}.".startswith(f"{done}.") or done.startswith(f"{key}."):
                return self.said_in.get(text, COMMAND_LINE)
        below = (line for name, line in self.lines.items() if name.startswith(f"{key}."))
        return self.lines.get(key) or self.given.get(key) or next(below, "")

    def origin(self, key: str) -> str:
        """The origin of a value: `written_at`, or the line of the default."""
        return self.written_at(key) or default_origin(self.tree, key)

    def typed(self) -> Composed:
        """The config as dataclasses."""
        config = OmegaConf.to_object(self.tree)
        assert isinstance(config, Composed)
        folders = [quoted(os.path.abspath(path)) for path in self.config_dirs]
        search = (f"hydra.searchpath=[{folder}]" for folder in folders)
        preset = self.choices.get("model") or "run"
        config.set_source((*search, *self.overrides), preset, stated=self._stated())
        return config

    def _stated(self) -> frozenset[str]:
        """The keys that files of a whole experiment set; none where no derivation asks."""
        if self.choices.get("scaling") in (None, "none"):
            return frozenset()
        whole = [pair for pair in self.files if pair[0].partition("/")[0] in groups.OPTIONAL]
        return frozenset(file_lines(self.library, whole))


def config(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composed:
    """Compose a typed config from groups and values. Raises ConfigError with every problem."""
    composition = compose(overrides, config_dirs=config_dirs)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition.typed()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A context without Python's garbage collector, which would walk every node of a growing config
    over and over.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_garbage_collection()
def compose(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composition:
    """Compose the groups without wrong choices, then apply the values singly and in order, to find
    every wrong value.
    """
    composition, assigned = compose_choices(overrides, config_dirs=config_dirs)
    set_values(composition, assigned)
    composition.problems += values.open_ends(composition.tree, composition.written_at)
    return composition


def set_values(composition: Composition, assigned: Sequence[Override]) -> None:
    """Set values in order, and report misfits as problems. Each misfit is tried again at the end,
    for advice based on the values set by all other overrides.
    """
    tree, library = composition.tree, composition.library
    if not composition.given and OmegaConf.get_type(tree, "model") is FolderDecoder:
        from forge.compose.hugging_face import fill_model_section  # imported late: few runs need it

        composition.given, faults = fill_model_section(tree, assigned, composition.lines)
        composition.problems += faults
    wrong = []
    for override in assigned:
        if problem := values.set_value(tree, override, library):
            wrong.append((override, problem))
        else:
            composition.applied[override.key_or_group] = override.input_line or ""
    composition.problems += [
        values.set_value(tree, override, library) or problem for override, problem in wrong
    ]
    composition.problems = [
        replace(p, where=composition.said_in.get(p.key, p.where)) for p in composition.problems
    ]


def compose_choices(
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[str] = (),
    read_from: Callable[[tuple[str, ...]], Library] = Library,
) -> tuple[Composition, list[Override]]:
    """Compose the group choices among these overrides; also return the overrides of values, not yet
    applied. read_from: builds the library of a search path.
    """
    with_dashes = [text for text in overrides if text.startswith("-")]
    readings = [read_override(translate(text)) for text in overrides if text not in with_dashes]
    problems = [reading for reading in readings if isinstance(reading, Problem)]
    parsed = [reading for reading in readings if isinstance(reading, Override)]
    library = read_from(_search_path(config_dirs, parsed, problems))
    primary = _primary(parsed, library, problems)
    parsed = [override for override in parsed if not override.is_hydra_override()]
    choices = [override for override in parsed if library.is_group(override.key_or_group)]
    refused = {id(o): problem for o in choices if (problem := groups.illegal(o, library))}
    legal = [override for override in choices if id(override) not in refused]
    merged, faults = groups.merge_choices(library, legal, primary)
    facts = resolvers.hydra_section([str(text) for text in overrides], merged.choices, primary)
    resolvers.attach(merged.tree, facts)
    composition = Composition(
        tree=merged.tree,
        library=library,
        overrides=tuple(overrides),
        choices=merged.choices,
        files=merged.files,
        facts=facts,
        config_dirs=tuple(config_dirs),
        problems=[*problems, *refused.values(), *faults],
    )
    if merged.tree.run._get_node("trust")._value() not in ([], "???"):
        message, where = "a file sets run.trust.", composition.lines.get("run.trust", "")
        hint = "set it on the command line or in code only, so that no file can widen what is built"
        composition.problems.append(Problem("run.trust", message, hint, where=where))
        merged.tree.run.trust = []
    composition.problems += map(Keys(merged.tree, library).dashed, with_dashes)
    composition.problems += values.lists_as_values(merged.tree, composition.written_at)
    return composition, [override for override in parsed if override not in choices]


def _primary(overrides: Sequence[Override], library: Library, problems: list[Problem]) -> str:
    """The config chosen by hydra.job.config_name, or --config-name, in place of conf/config.yaml; a
    missing config is added to the problems.
    """
    for override in overrides:
        if override.key_or_group == CONFIG_NAME:
            name = str(override.value()).removesuffix(".yaml")
            if name in (primaries := library.primaries()):
                return name
            meant = [f"--config-name {near}" for near in closest(name, primaries)]
            hint = did_you_mean(meant) or "--config-dir FOLDER, where it is"
            message = f"there is no config named '{name}'."
            problems.append(Problem(f"--config-name {name}", message, hint, where=COMMAND_LINE))
    return PRIMARY


def _search_path(
    config_dirs: Sequence[str], overrides: Sequence[Override], problems: list[Problem]
) -> tuple[str, ...]:
    """The search path; faults of the search path, or of other settings of Hydra, are added to the
    problems.
    """
    entries = [(folder, f"--config-dir {folder}") for folder in config_dirs]
    for override in filter(Override.is_hydra_override, overrides):
        value = None if override.is_delete() else override.value()
        is_search = override.key_or_group == "hydra.searchpath" and override.package is None
        if is_search and isinstance(value, list):
            entries += [(str(entry), "hydra.searchpath") for entry in value]
        elif override.key_or_group != CONFIG_NAME:
            fault = _hydra_fault(override.key_or_group)
            problems.append(Problem(override.input_line or "", *fault, where=COMMAND_LINE))
    sources = []
    for entry, key in entries:
        scheme, sign, package = entry.partition("://")
        path = entry if sign else f"file://{os.path.realpath(os.path.expanduser(entry))}"
        fault = None
        if scheme == "pkg" and sign:
            key, fault = f"hydra.searchpath=[{entry}]", packages.import_fault(package)
        elif scheme != "file" and sign:
            message = f"{entry} is neither a directory nor a package."
            fault = message, "hydra.searchpath=[my/conf] or [pkg://my.conf]"
        elif not os.path.isdir(folder := path.removeprefix("file://")):
            fault = f"there is no directory or package {folder}.", "give an existing one"
        elif key.startswith("--config-dir") and _shadows(folder):
            name = f"{display(Path(folder, PRIMARY))}.yaml"
            message = f"{name} is not read: forge's own has that name."
            first = f"with '- {PRIMARY}' first in its defaults"
            fault = message, f"call it mine.yaml, {first}, and type --config-name mine"
        if fault:
            problems.append(Problem(key, *fault, where=COMMAND_LINE))
        else:
            sources.append(path)
    return tuple(sources)


def _shadows(folder: str) -> bool:
    """Whether a folder has a primary config of the user's with the name of forge's."""
    return os.path.isfile(f"{folder}/{PRIMARY}.yaml") and Path(folder) != CONF


def _hydra_fault(key: str) -> tuple[str, str]:
    if key == "hydra.searchpath":
        return "hydra.searchpath is a list of directories.", "hydra.searchpath=[my/conf]"
    if ours := OWN_DIRECTORIES.get(key):
        return "forge makes its own directories of runs and sweeps.", f"write {ours}=..."
    return "Hydra's own settings have no effect on a run of forge.", OF_HYDRA
