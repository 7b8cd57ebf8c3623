"""Values as they are typed on the command line."""

from __future__ import annotations

import re
from typing import Any


def literal(value: Any) -> str:
    """A value in Hydra's grammar, which reads it back as it was."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(literal, value))}]"
    return shown(value)


def quoted(value: str) -> str:
    """A text in Hydra's grammar; quoted where it must be, with backslashes doubled in front of a
    quote only.
    """
    if re.fullmatch(r"[A-Za-z/.][\w.:@%-]*[/:][\w./:@%-]*", value, re.ASCII):
        return value
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def shown(value: object) -> str:
    """A value for a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(shown(v) for v in value)}]"
    return str(value)


def typed(key: str, value: str) -> str:
    """An override as it is typed: with quotes for the shell where the value has quotes or spaces."""
    text = f"{key}={value}"
    return (
        text
        if not re.search(r"[\s\"']", value)
        else f'"{text}"'
        if "'" in value and '"' not in value
        else f"'{text}'"
    )
