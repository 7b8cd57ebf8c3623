"""Help texts, made from the groups, their YAML comments and the schema."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterator, Sequence

from forge.compose.engine import Library
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import Section, default_of
from forge.config.problems import shown


def page(command: str, arguments: argparse.ArgumentParser, topics: Sequence[str]) -> str:
    """The help of a verb; with the names of groups, what these offer."""
    library = Library()
    groups = library.groups()
    if known := [topic for topic in topics if topic in groups]:
        return "\n\n".join(group_page(library, topic) for topic in known)
    listed = [f"  {group:<12} {', '.join(library.options(group))}" for group in groups]
    root = [f"  {field.name:<12} {describe(field)}" for field in schemas.root_options()]
    more = f"  python -m {command.split()[0]} --help GROUP shows what one of them offers"
    flags = [
        f"  {', '.join(action.option_strings):<24} {action.help}"
        for action in arguments._actions
        if action.option_strings
    ]
    head = [f"python -m {command} [group=option] [key=value] ...", "", arguments.description or ""]
    lines = [*head, "", "groups", *listed, "", "at the root", *root, "", more, "", "flags", *flags]
    return "\n".join(lines)


def group_page(library: Library, group: str) -> str:
    """The options of a group with the first line of each file, then the keys of its section."""
    lines = [group]
    for option in library.options(group):
        lines.append(f"  {group}={option:<14} {summary(library, group, option)}")
    sections = list(titles(group))
    if sections:
        lines += ["", "  Below, the defaults of the schema; the files above state other values."]
    for choice, schema, first_line in sections:
        lines += ["", f"  {schema.__name__}{f' ({choice})' if choice else ''}: {first_line}"]
        lines += [f"    {group}.{key:<28} {describe(f)}" for key, f in options_below(schema)]
    return "\n".join(lines)


def titles(group: str) -> Iterator[tuple[str, type[Section], str]]:
    """The schemas of a group, each with the choice that brings it, where there are several, and the
    first line of its docstring.
    """
    if group in schemas.sections():
        for name, schema in schemas.variants(group).items():
            choice = f"{group}={name}" if group in schemas.SCHEMAS else ""
            yield choice, schema, (inspect.getdoc(schema) or "").splitlines()[0]


def options_below(schema: type[Section]) -> Iterator[tuple[str, dataclasses.Field]]:
    """The options of a section that a user sets, by key below it."""
    options = schemas.options_of(schema)
    return ((key, f) for key, _, f in options if "._" not in f".{key}")


def summary(library: Library, group: str, option: str) -> str:
    """What an option is for: the first comment of its file."""
    file = library.file_of(f"{group}/{option}")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    comments = (line for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "").lstrip("# ")


def describe(field: dataclasses.Field) -> str:
    """Default, meaning and bounds of an option in one line."""
    admitted = describe_bounds(field.metadata)
    meaning = f"{show(default_of(field))}   {field.metadata.get('help', '')}"
    return f"{meaning} [{admitted}]" if admitted else meaning


def show(value: object) -> str:
    """A default as YAML writes it."""
    return str(list(value)) if isinstance(value, tuple | list) else shown(value)
