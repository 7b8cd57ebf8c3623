"""Where a value comes from: an override, a line of a file, or a default of its dataclass."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from forge.config.compose import Composition
from forge.config.overrides import COMMAND_LINE
from forge.config.paths import CONF


def origin(composition: Composition, key: str) -> str:
    """'command line', or file and line; empty for a key that does not exist."""
    if key in composition.applied:
        return COMMAND_LINE
    above = key.rpartition(".")[0]
    if above in composition.applied:
        return COMMAND_LINE
    written = _lines(composition)
    if key in written:
        return written[key]
    return _default(composition, key)


def _lines(composition: Composition) -> dict[str, str]:
    """File and line of every value that a YAML file of this composition sets; a later file wins."""
    found: dict[str, str] = {}
    for config_path, package in composition.files:
        file = composition.library.file_of(config_path)
        if file is None:
            continue
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        for key, line in _walk(node, f"{package}." if package else ""):
            found[key] = f"{display(file)}:{line}"
    return found


def _walk(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        if prefix == "" and name.value == "defaults":
            continue
        key = f"{prefix}{name.value}"
        yield key, name.start_mark.line + 1
        yield from _walk(value, f"{key}.")


def _default(composition: Composition, key: str) -> str:
    above, _, name = key.rpartition(".")
    try:
        node = OmegaConf.select(composition.tree, above) if above else composition.tree
    except Exception:
        return ""
    schema = OmegaConf.get_type(node) if OmegaConf.is_dict(node) else None
    for owner in getattr(schema, "__mro__", ()):
        if name in inspect.get_annotations(owner):
            source, start = inspect.getsourcelines(owner)
            for offset, line in enumerate(source):
                if re.match(rf"\s+{re.escape(name)}\s*:", line):
                    return f"{display(Path(inspect.getfile(owner)))}:{start + offset}, the default"
    return ""


def display(file: Path) -> str:
    """A short path: relative to the working directory, or to the folder that holds conf/."""
    file = file.resolve()
    for base in (Path.cwd(), CONF.parent):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    return str(file)
