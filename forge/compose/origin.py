"""Where values come from: lines of YAML files, and defaults of dataclasses."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from forge.compose.engine import Library
from forge.compose.hydra_adapter import CONF
from forge.config.hydra_names import translate_key
from forge.config.targets.own import Own
from forge.rundir.roots import file_above


def file_lines(library: Library, files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """'file:line' by key of every value set by files of (config path, package)."""
    lines: dict[str, str] = {}
    for config_path, package in files:
        if file := library.file_of(config_path):
            prefix = f"{package}." if package else ""
            for key, name, _ in nodes_of(file):
                lines[translate_key(f"{prefix}{key}")] = f"{display(file)}:{line_of(name)}"
    return lines


def nodes_of(file: Path) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Dotted keys set by a YAML file, each with the nodes of its name and value."""
    yield from _walk(_parsed(file.read_text(encoding="utf-8")), "")


@functools.lru_cache(maxsize=1024)  # the points of a sweep and the rules ask for the same files
def _parsed(text: str) -> yaml.Node | None:
    """The root node of a YAML text. Callers share the nodes, and must not change them."""
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _walk(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        key = f"{prefix}{name.value}"
        if key != "defaults":
            yield key, name, value
            yield from _walk(value, f"{key}.")


def line_of(node: yaml.Node) -> int:
    """The line of a node, from 1."""
    return node.start_mark.line + 1


def node_value(node: yaml.Node) -> Any:
    """The value of a YAML node."""
    return yaml.SafeLoader("").construct_document(node)


def display(file: Path) -> str:
    """A short path: relative to the file's project, with the project's name, else to the working
    directory, or to the parent folder of forge's conf/.
    """
    file = file.resolve()
    if not file.is_relative_to(CONF.parent) and (root := file_above(file.parent)):
        return f"{root.parent.name}: {file.relative_to(root.parent)}"
    for base in (Path.cwd(), CONF.parent):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    return str(file)


def default_origin(tree: DictConfig, key: str) -> str:
    """File and line of the default in an option's dataclass; empty without a declared default."""
    above, _, name = key.rpartition(".")
    section = OmegaConf.select(tree, above) if above else tree
    return _declared_at(OmegaConf.get_type(section), name) if OmegaConf.is_dict(section) else ""


@functools.cache
def _declared_at(schema: type | None, name: str) -> str:
    for owner in getattr(schema, "__mro__", ()):
        if issubclass(owner, Own) and name in inspect.get_annotations(owner):
            return f"the default of {owner.__name__}"
        if name in inspect.get_annotations(owner):
            source, start = inspect.getsourcelines(owner)
            for number, line in enumerate(source, start):
                if re.match(rf"\s+{re.escape(name)}\s*:", line):
                    return f"{display(Path(inspect.getfile(owner)))}:{number}, the default"
    return ""
