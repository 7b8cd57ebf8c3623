"""Reading one override, or saying why it cannot be read."""

from __future__ import annotations

import re
import typing

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from forge.compose.engine import parse
from forge.config import schemas
from forge.config.bounds import fits, kind
from forge.config.problems import COMMAND_LINE, Problem, typed

KEY = re.compile(r"[A-Za-z_][\w-]*([./][\w-]+)*(@[\w./-]+)?", re.ASCII)
ELEMENT = re.compile(r"([A-Za-z_][\w.]*)\[\d+\]", re.ASCII)
ITEM = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([^\[\]{},"']+)""")
"""A text in quotes, or what stands between the signs of a list or dict."""


def read(text: str) -> Override | Problem:
    """One override as Hydra's grammar has it."""
    try:
        override = parse(text)
        if override.key_or_group:
            return override
        said = "it has no key"
    except (HydraException, RecursionError, ValueError) as error:
        said = re.sub(r" expecting \{.*", "", str(error).partition("\n")[0]).rstrip(".")
    return Problem(text or "''", *_fault(text, said), where=COMMAND_LINE)


def _fault(text: str, said: str) -> tuple[str, str]:
    """What is wrong with an override that cannot be read, and what to do. said: by Hydra."""
    key, sign, value = text.partition("=")
    name = key.lstrip("+~")
    is_key = KEY.fullmatch(name) is not None
    if not sign:
        example = "group=option or key=value, such as model=small or optimizer.lr=1e-3"
        return "this is not key=value.", f"write {text}=..." if is_key else example
    if element := ELEMENT.fullmatch(name):
        return "a list is given as a whole.", f"{element[1]}=[...]"
    if not is_key:
        what = f"'{name}' is no key: a key is made of letters a-z, digits, _ and dots."
        return what, "group=option or key=value, such as model=small or optimizer.lr=1e-3"
    what = f"the value {value} cannot be read: {said}."
    hint = schemas.declared(name)
    takes_list = typing.get_origin(hint) in (list, tuple)
    items = value if value[:1] + value[-1:] in ("[]", "{}") else f"[{value}]" if takes_list else ""
    if items and is_readable(f"{key}={with_quotes(items)}"):
        return what, f"write {typed(key, with_quotes(items))}"
    if hint is None or fits("", hint) or fits([""], hint):
        return what, f"to give it as a text: {as_text(key, value)}"
    return what, f"{name} is {kind(hint)}"


def with_quotes(value: str) -> str:
    """A list or dict with quotes around each element that cannot be read without them."""

    def quote(match: re.Match[str]) -> str:
        before, item, after = re.findall(r"(?s)^(\s*(?:[\w.-]+:\s+)?)(.*?)(\s*)$", match[0])[0]
        if match[1] or not item or is_readable(f"x=[{item}]"):
            return match[0]
        return f"{before}{_in_quotes(item)}{after}"

    return ITEM.sub(quote, value)


def as_text(key: str, value: str) -> str:
    """An override that gives a value as a text, as it is typed."""
    return f"'{key}={_in_quotes(value)}'"


def is_readable(text: str) -> bool:
    """Whether Hydra reads an override."""
    try:
        parse(text)
    except (HydraException, RecursionError, ValueError):
        return False
    return True


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
