"""Help texts, made from the groups, their YAML comments and the schema."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Sequence

from forge.compose.engine import Library
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import Section, default_of


def page(command: str, arguments: argparse.ArgumentParser, topics: Sequence[str]) -> str:
    """The help of a verb; with the names of groups, what these offer."""
    library = Library()
    known = [topic for topic in topics if topic in library.groups()]
    if known:
        return "\n\n".join(group_page(library, topic) for topic in known)
    flags = [action for action in arguments._actions if action.option_strings]
    lines = [
        f"python -m {command} [group=option] [key=value] ...",
        "",
        arguments.description or "",
        "",
        "groups",
    ]
    lines += [f"  {group:<12} {', '.join(library.options(group))}" for group in library.groups()]
    lines += [
        "",
        "at the root",
        *(f"  {field.name:<12} {describe(field)}" for field in schemas.root_options()),
    ]
    lines += [
        "",
        f"  python -m {command.split()[0]} --help GROUP shows what one of them offers",
        "",
        "flags",
    ]
    lines += [f"  {', '.join(action.option_strings):<24} {action.help}" for action in flags]
    return "\n".join(lines)


def group_page(library: Library, group: str) -> str:
    """The options of a group with the first line of each file, then the keys of its section."""
    lines = [group]
    for option in library.options(group):
        lines.append(f"  {group}={option:<14} {summary(library, group, option)}")
    lines += (
        ["", "  Below, the defaults of the schema; the files above state other values."]
        if group in schemas.sections()
        else []
    )
    for name, schema in (schemas.variants(group) if group in schemas.sections() else {}).items():
        lines += [
            "",
            f"  {schema.__name__}"
            + (f" ({group}={name})" if group in schemas.SCHEMAS else "")
            + f": {first_line(schema)}",
        ]
        lines += [
            f"    {group}.{name:<28} {describe(f)}"
            for name, _, f in schemas.options_of(schema)
            if not name.startswith("_")
        ]
    return "\n".join(lines)


def summary(library: Library, group: str, option: str) -> str:
    """What an option is for: the first comment of its file."""
    file = library.file_of(f"{group}/{option}")
    lines = file.read_text(encoding="utf-8").splitlines() if file else []
    return next(
        (line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line), ""
    )


def first_line(schema: type[Section]) -> str:
    """First line of a section's docstring."""
    return (inspect.getdoc(schema) or "").splitlines()[0]


def describe(field: dataclasses.Field) -> str:
    """Default, meaning and bounds of an option in one line."""
    admitted = describe_bounds(field.metadata)
    return f"{show(default_of(field))}   {field.metadata.get('help', '')}" + (
        f" [{admitted}]" if admitted else ""
    )


def show(value: object) -> str:
    """A default as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple | list) else str(value)
