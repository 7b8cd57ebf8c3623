"""Where YAML files set values: file and line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from forge.compose.engine import Library
from forge.compose.paths import CONF
from forge.config import spelling


def written(library: Library, files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """'file:line' of every value that the given (config path, package) set; a later file wins."""
    found: dict[str, str] = {}
    for config_path, package in files:
        file = library.file_of(config_path)
        if file is not None:
            prefix = f"{package}." if package else ""
            found |= {
                spelling.key_of(f"{prefix}{key}"): f"{display(file)}:{line}"
                for key, line in keys_of(file)
            }
    return found


def keys_of(file: Path) -> Iterator[tuple[str, int]]:
    """Dotted keys that a YAML file sets, each with its line."""
    yield from ((key, name.start_mark.line + 1) for key, name, _ in nodes_of(file))


def nodes_of(file: Path) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Dotted keys that a YAML file sets, each with the node of its name and that of its value."""
    yield from _walk(yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader), "")


def value_of(node: yaml.Node) -> Any:
    """What a node of a file holds."""
    return yaml.SafeLoader("").construct_document(node)


def display(file: Path) -> str:
    """A short path: relative to the working directory, or to the folder that holds conf/."""
    file = file.resolve()
    for base in (Path.cwd(), CONF.parent):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    return str(file)


def _walk(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        if prefix == "" and name.value == "defaults":
            continue
        key = f"{prefix}{name.value}"
        yield key, name, value
        yield from _walk(value, f"{key}.")
