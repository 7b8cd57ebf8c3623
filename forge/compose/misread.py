"""Numbers in files that YAML reads otherwise than they look: 1:30 in base 60, 010 in base 8."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import yaml

from forge.compose.engine import Library
from forge.compose.expected import in_file, minutes
from forge.compose.lines import display
from forge.config import spelling
from forge.config.problems import Problem

ODD = re.compile(r"[-+]?(?P<sixty>[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)|[-+]?0[0-7_]+")
MAYBE = re.compile(rf"(?<![\w.:])(?:{ODD.pattern})(?=\s|[],}}]|$)", re.MULTILINE)


def misread(library: Library, files: Iterable[tuple[str, str]]) -> list[Problem]:
    """Every such number of the given (config path, package)."""
    problems = []
    for config_path, package in files:
        file = library.file_of(config_path)
        if file is None or not MAYBE.search(text := file.read_text(encoding="utf-8")):
            continue
        for written, node in _scalars(yaml.compose(text, Loader=yaml.SafeLoader), ""):
            found = ODD.fullmatch(node.value)
            if found is None or node.style is not None or node.tag == "tag:yaml.org,2002:str":
                continue
            key = spelling.key_of(f"{package}.{written}" if package else written)
            base = "60" if found["sixty"] else "8"
            what = f"YAML reads {node.value} as the number {yaml.safe_load(node.value)}, in base {base}."
            problems.append(
                Problem(
                    key=key,
                    what=what,
                    fix=_fix(key, node.value),
                    where=f"{display(file)}:{node.start_mark.line + 1}",
                )
            )
    return problems


def _fix(key: str, text: str) -> str:
    name = key.rpartition(".")[2]
    if key == "launch.time":
        found = minutes(text)
        return f"in minutes: {in_file(name, found)}" if found else "in minutes, like time: 60"
    return f'in quotes where a text is meant: "{text}"; else the number that is meant'


def _scalars(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every value below a node that is no collection, with its dotted key; the elements of a list
    have that of the list.
    """
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{prefix}.{name.value}" if prefix else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars(value, prefix)
    elif isinstance(node, yaml.ScalarNode):
        yield prefix, node
