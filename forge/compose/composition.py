"""Overrides to a typed, unresolved `Config`, collecting every problem on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from forge.compose import choices as groups
from forge.compose import overrides as values
from forge.compose import several
from forge.compose.composed import Composed
from forge.compose.engine import Library
from forge.compose.grammar import read
from forge.compose.lines import written
from forge.compose.misread import misread
from forge.compose.unknown import dashed
from forge.config import packages, spelling
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, quoted

READ = "hydra.searchpath, and of a sweep hydra/launcher, hydra.launcher.*, hydra/sweeper and hydra.sweeper.*"


@dataclass(kw_only=True)
class Composition:
    """A composed config with what it was made of; `problems` is empty when it is sound."""

    tree: DictConfig
    library: Library
    overrides: tuple[str, ...]
    choices: dict[str, str | None]
    files: list[tuple[str, str]]
    applied: dict[str, str]
    config_dirs: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)

    @cached_property
    def lines(self) -> dict[str, str]:
        """File and line of every value that a file of this composition sets."""
        return written(self.library, self.files)

    def written_at(self, key: str) -> str:
        """'command line', or the file and line that set a key, or the first below it, or nothing
        when its default stands.
        """
        if any(
            key == done or key.startswith(f"{done}.") or done.startswith(f"{key}.")
            for done in self.applied
        ):
            return COMMAND_LINE
        return self.lines.get(key) or next(
            (line for name, line in self.lines.items() if name.startswith(f"{key}.")), ""
        )

    def typed(self) -> Composed:
        """The config as dataclasses. Call it on a sound composition."""
        config = OmegaConf.to_object(self.tree)
        assert isinstance(config, Composed)
        search = (
            f"hydra.searchpath=[{quoted(os.path.abspath(path))}]" for path in self.config_dirs
        )
        config.set_source((*search, *self.overrides), self.choices.get("model") or "run")
        return config


def compose(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composition:
    """Compose the groups, then apply the values one by one.

    Group choices are composed in one pass; a wrong one is left out and reported. Values go on top
    in the order given, as Hydra has it, so that every wrong one is found and not only the first.
    """
    composition, assigned = chosen(overrides, config_dirs=config_dirs)
    apply(composition, assigned)
    composition.problems += values.open_ends(composition.tree, composition.written_at)
    return composition


def apply(composition: Composition, assigned: Sequence[Override]) -> None:
    """Set values, in their order; those that do not fit are problems, of which each advises with
    the values that all others have set.
    """
    wrong = []
    for override in assigned:
        problem = values.apply(composition.tree, override, composition.library)
        if problem is not None:
            wrong.append((override, problem))
        else:
            composition.applied[override.key_or_group] = override.input_line or ""
    composition.problems += [
        values.apply(composition.tree, override, composition.library) or problem
        for override, problem in wrong
    ]


def chosen(
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[str] = (),
    read_from: Callable[[tuple[str, ...]], Library] = Library,
) -> tuple[Composition, list[Override]]:
    """What the group choices among these overrides compose to, and the overrides that are values,
    not yet applied.

    read_from: gives the groups of a search path.
    """
    if isinstance(overrides, str):
        raise ConfigError(
            [
                Problem(
                    key=overrides,
                    what="overrides come as a list of texts.",
                    fix=f"compose([{overrides!r}])",
                )
            ]
        )
    problems: list[Problem] = []
    with_dashes = [text for text in overrides if text.startswith("-")]
    readings = [read(spelling.ours(text)) for text in overrides if text not in with_dashes]
    problems += [reading for reading in readings if isinstance(reading, Problem)]
    hydra, parsed = _split(
        [o for o in readings if isinstance(o, Override)], lambda o: o.is_hydra_override()
    )
    from_flag = {
        source: f"--config-dir {d}" for d in config_dirs if (source := _source(d, problems))
    }
    sources = list(from_flag)
    for override in hydra:
        sources += _search_path(override, problems)
    library = read_from(tuple(sources))
    problems += [
        _no_directory(path, from_flag.get(f"file://{path}")) for path in library.missing_sources()
    ]
    choices, assigned = _split(parsed, lambda o: library.is_group(o.key_or_group))
    refused = {id(o): problem for o in choices if (problem := groups.illegal(o, library))}
    merged, faults = groups.merge(library, [o for o in choices if id(o) not in refused])
    problems += [*refused.values(), *faults]
    tree = merged.tree
    composition = Composition(
        tree=tree,
        library=library,
        overrides=tuple(overrides),
        choices=merged.choices,
        files=merged.files,
        applied={},
        config_dirs=tuple(config_dirs),
        problems=problems,
    )
    if tree.run._get_node("trust")._value() not in ([], "???"):
        fix = "set it on the command line or in code only, so that no file can widen what is built"
        problems.append(
            Problem(
                key="run.trust",
                what="a file sets run.trust.",
                fix=fix,
                where=composition.lines.get("run.trust", ""),
            )
        )
        tree.run.trust = []
    problems += [dashed(tree, library, text) for text in with_dashes]
    problems += misread(library, composition.files)
    problems += several.as_texts(tree, composition.written_at)
    return composition, assigned


def _split(items: list[Override], first) -> tuple[list[Override], list[Override]]:
    return [o for o in items if first(o)], [o for o in items if not first(o)]


def _source(path: str, problems: list[Problem]) -> str | None:
    scheme, sign, _ = path.partition("://")
    if not sign:
        return f"file://{os.path.realpath(os.path.expanduser(path))}"
    fault = packages.import_fault(path.removeprefix("pkg://")) if scheme == "pkg" else None
    if fault is not None:
        problems.append(
            Problem(
                key=f"hydra.searchpath=[{path}]", what=fault[0], fix=fault[1], where=COMMAND_LINE
            )
        )
        return None
    if scheme in ("file", "pkg"):
        return path
    what = f"{path} is neither a directory nor a package."
    problems.append(
        Problem(
            key="hydra.searchpath",
            what=what,
            fix="hydra.searchpath=[my/conf] or [pkg://my.conf]",
            where=COMMAND_LINE,
        )
    )
    return None


def _no_directory(path: str, typed: str | None) -> Problem:
    return Problem(
        key=typed or "hydra.searchpath",
        what=f"there is no directory or package {path}.",
        fix="give an existing one",
        where=COMMAND_LINE,
    )


def _search_path(override: Override, problems: list[Problem]) -> list[str]:
    if override.package is not None:
        what, fix = "only a group takes @.", f"leave @{override.package} out"
    elif override.key_or_group == "hydra.searchpath":
        value = None if override.is_delete() else override.value()
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return [source for v in value if (source := _source(str(v), problems))]
        what, fix = "hydra.searchpath is a list of directories.", "hydra.searchpath=[my/conf]"
    elif override.key_or_group in ("hydra.run.dir", "hydra.job.name") and not override.is_delete():
        ours = "run.dir" if override.key_or_group == "hydra.run.dir" else "run.name"
        what, fix = (
            "forge makes its own run directory.",
            f"write {ours}={override.get_value_string()}",
        )
    elif override.key_or_group in ("hydra.sweep.dir", "hydra.sweep.subdir"):
        what, fix = (
            "forge makes the directory of a sweep, and those of its points.",
            "write sweep.root=... and sweep.name=...",
        )
    else:
        what, fix = (
            "Hydra's own settings have no effect on a run of forge.",
            f"of hydra.*, forge reads {READ}",
        )
    problems.append(Problem(key=override.input_line or "", what=what, fix=fix, where=COMMAND_LINE))
    return []


def config(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composed:
    """The config that groups and values compose to. Raises ConfigError with every problem."""
    composition = compose(overrides, config_dirs=config_dirs)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition.typed()
