"""A user's own project: what the file at its root says for every command typed below it.

forge.yaml, or [tool.forge] in pyproject.toml: name, searchpath, trust, defaults.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from forge.compose.defaults import unreplaced_defaults
from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import Override
from forge.compose.origin import display, line_of, node_value
from forge.compose.portable import absolute, searched
from forge.config import schemas
from forge.config.hydra_names import translate
from forge.config.places import ADDRESS
from forge.config.problems import ConfigError, Problem, closest, did_you_mean, quoted
from forge.families.download import is_id
from forge.rundir.roots import FILE, file_above, forge_table
from forge.rundir.untrusted import SEARCH, TRUST, note_project, option_of

KEYS = ("name", "searchpath", "trust", "defaults")
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?")
PLACES = ("run.root", "sweep.root")
"""Folders that begin where a command is typed, beside those that are paths of what is read."""
NOT_HERE = {
    SEARCH: "it has a key of its own here, searchpath.",
    TRUST: "it has a key of its own here, trust.",
    "run.dir": "all runs would be in one directory.",
}


class Default(str):
    """An override of a project file. where: file and line."""

    where: str

    def __new__(cls, text: str, where: str) -> Default:
        default = super().__new__(cls, text)
        default.where = where
        return default


@dataclass(frozen=True, kw_only=True)
class Project:
    """The content of a project file. searchpath: absolute folders, and packages as pkg://mine.conf.
    trust: prefixes of modules admitted as `_target_`. defaults: overrides.
    """

    name: str
    file: Path
    searchpath: tuple[Default, ...] = ()
    trust: tuple[Default, ...] = ()
    defaults: tuple[Default, ...] = ()

    @property
    def root(self) -> Path:
        return self.file.parent

    @property
    def sources(self) -> list[str]:
        """The search path in Hydra's form."""
        return [entry if "://" in entry else f"file://{entry}" for entry in self.searchpath]

    def words(self, typed: Sequence[str]) -> list[str]:
        """The overrides of a command: the project's overrides without replaced defaults, then the
        typed overrides. Typed trust is added to the project's trust.
        """
        search = [Default(f"{SEARCH}=[{quoted(entry)}]", entry.where) for entry in self.searchpath]
        trust = [self._trusting(())] if self.trust else []
        defaults = unreplaced_defaults(self.defaults, typed, self.sources)
        return [*search, *trust, *defaults, *map(self._with_trust, typed)]

    def _trusting(self, more: Sequence[str]) -> Default:
        listed = ",".join(map(quoted, dict.fromkeys((*self.trust, *more))))
        return Default(f"{TRUST}=[{listed}]", self.trust[0].where)

    def _with_trust(self, text: str) -> str:
        added = prefixes(text) if self.trust and option_of(text) == TRUST else ()
        return str(self._trusting(added)) if added else text

    def enter(self) -> None:
        """Make the project's modules importable, also by workers
        (launch.local.processes.search_path).
        """
        note_project(
            self.trust,
            [override for override in self.words(()) if option_of(override) in (SEARCH, TRUST)],
        )
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))


def prefixes(text: str) -> tuple[str, ...]:
    """The module prefixes in run.trust=[...]; none of any other override."""
    override = read_override(text) if option_of(text) == TRUST else None
    value = override.value() if isinstance(override, Override) else None
    return tuple(map(str, value)) if isinstance(value, list) else ()


def find_project(start: Path | None = None) -> Project | None:
    """The project around a directory, by default the working directory. Raises ConfigError."""
    file = file_above(start or Path.cwd())
    if file is None:
        return None
    return _of_yaml(file) if file.name == FILE else _of_toml(file)


def _of_yaml(file: Path) -> Project:
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        message = f"the file is not YAML: {getattr(error, 'problem', None) or error}."
        raise _refusal(file, message, line=mark.line + 1 if mark else 0) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(file, f"it cannot be read: {error}.") from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise _refusal(file, f"it has keys: {', '.join(KEYS)}.", line=1)
    content, lines = {}, {}
    for name, value in node.value if node else ():
        key = str(name.value)
        content[key], lines[key] = node_value(value), [line_of(name)]
        if isinstance(value, yaml.SequenceNode):
            lines[key] += map(line_of, value.value)
    return _project(file, content, lines)


def _of_toml(file: Path) -> Project:
    text, content = file.read_text(encoding="utf-8"), forge_table(file)
    if not isinstance(content, dict):
        raise _refusal(file, f"tool.forge is a table with keys: {', '.join(KEYS)}.")
    below = text.partition("[tool.forge]")[0].count("\n") + 1
    lines: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines()[below:], start=below + 1):
        if key_match := re.match(r"\s*([\w-]+)\s*=", line):
            lines.setdefault(key_match[1], [number])
    return _project(file, content, lines)


def _project(file: Path, content: dict[str, Any], lines: dict[str, list[int]]) -> Project:
    """The project of a file's content. Raises ConfigError with every problem. lines: the line of
    each key, followed by the known lines of its entries.
    """
    problems = list[Problem]()

    def wrong(key: str, what: str, fix: str, entry: int = 0) -> None:
        problems.append(Problem(key, what, fix, where=where(key.partition(":")[0], entry)))

    def where(key: str, entry: int = 0) -> str:
        numbers = lines.get(key, [0])
        line = numbers[entry] if entry < len(numbers) else numbers[0]
        return f"{display(file)}:{line}" if line else display(file)

    def texts(key: str) -> list[Default]:
        entries = content.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            example = {"searchpath": "[conf]", "trust": "[mine.]"}.get(key, "[model=mine]")
            wrong(key, f"{key} is a list of texts.", f"{key}: {example}")
            return []
        return [Default(entry, where(key, number)) for number, entry in enumerate(entries, start=1)]

    for key in content.keys() - set(KEYS):
        meant = did_you_mean(closest(key, KEYS)) or f"its keys: {', '.join(KEYS)}"
        wrong(str(key), f"a project file has no key '{key}'.", meant)
    name = content.get("name", file.parent.name)
    if not isinstance(name, str) or not name.strip():
        wrong("name", "name is a text.", f"name: {file.parent.name}")
    search, defaults = [], []
    for entry, text in enumerate(texts("searchpath"), start=1):
        folder = absolute(os.path.join(file.parent, os.path.expanduser(text)))
        if "://" not in text and not os.path.isdir(folder):
            message = f"there is no directory {folder}."
            wrong(f"searchpath: {text}", message, "a folder of groups, or pkg://mine.conf", entry)
        search.append(Default(text if "://" in text else folder, text.where))
    trust = texts("trust")
    for entry, text in enumerate(trust, start=1):
        if not MODULE.fullmatch(text):
            message = f"'{text}' is no prefix of modules."
            wrong(f"trust: {text}", message, "such as mine. or mine.models.", entry)
    for entry, text in enumerate(texts("defaults"), start=1):
        key = option_of(text)
        if "=" not in text and not text.startswith("~"):
            wrong(f"defaults: {text}", "this is not key=value.", f"write {text}=...", entry)
        elif key in NOT_HERE:
            wrong(f"defaults: {text}", NOT_HERE[key], "leave it out", entry)
        defaults.append(Default(_from_root(translate(text), file.parent), text.where))
    if problems:
        raise ConfigError(sorted(problems, key=lambda one: (len(one.where), one.where)))
    return Project(
        name=str(name),
        file=file,
        searchpath=tuple(search),
        trust=tuple(trust),
        defaults=tuple(defaults),
    )


def _from_root(text: str, root: Path) -> str:
    """An override with a path in its value made absolute, from the project's root."""
    key, _, value = text.partition("=")
    if option_of(text) not in {*schemas.keys_with("path"), *PLACES} or value in ("", "null"):
        return text
    override = read_override(text)
    path = override.value() if isinstance(override, Override) else None
    if not isinstance(path, str) or "${" in path or path.startswith("~") or ADDRESS.match(path):
        return text
    if (
        option_of(text) == "model.path"
        and is_id(path)
        and not os.path.exists(os.path.join(root, path))
    ):
        return text
    return f"{key}={quoted(os.path.join(root, path))}"


def allowing(words: Collection[str], places: Sequence[Path]) -> Project | None:
    """The project of the first of these directories allowing all of the words, overrides of
    run.trust and of the search path.
    """
    for place in places:
        project = find_project(place) if place.is_dir() else None
        if project and all(
            set(project.trust).issuperset(prefixes(text))
            and set(project.searchpath).issuperset(map(absolute, searched(text)))
            for text in words
        ):
            return project
    return None


def _refusal(file: Path, what: str, *, line: int = 0) -> ConfigError:
    where = f"{display(file)}:{line}" if line else display(file)
    return ConfigError([Problem(file.name, what, "correct the file", where=where)])
