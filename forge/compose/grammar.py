"""Reading one override, or saying why it cannot be read."""

from __future__ import annotations

import re
import typing

from hydra.errors import HydraException

from forge.compose.hydra_adapter import Override, parse_override
from forge.config import schemas
from forge.config.bounds import fits, type_in_words
from forge.config.problems import COMMAND_LINE, Problem, literal

KEY = re.compile(r"[A-Za-z_][\w-]*([./][\w-]+)*(@[\w./-]+)?", re.ASCII)
ELEMENT = re.compile(r"([A-Za-z_][\w.]*)\[\d+\]", re.ASCII)
EXAMPLE = "group=option or key=value, such as model=small or optimizer.lr=1e-3"


def read_override(text: str) -> Override | Problem:
    """Read an override by Hydra's grammar, or return the problem."""
    try:
        override = _parse(text)
        if override.key_or_group and "[" not in override.key_or_group:  # Hydra 1.4 reads a[0]=1
            return override
        cause = "it has no key"
    except (HydraException, RecursionError, ValueError) as error:
        cause = re.sub(r" expecting \{.*", "", str(error).partition("\n")[0]).rstrip(".")
    return Problem(text or "''", *_fault(text, cause), where=COMMAND_LINE)


def _parse(text: str) -> Override:
    """An override, where tokens in a list need no quotes around their signs: [<think>,</think>]."""
    try:
        return parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        is_list = typing.get_origin(schemas.declared_type(key)) is list
        is_plain = value[:1] == "[" and value[-1:] == "]" and not set(value) & set("\"'\\")
        if not (is_list and is_plain and schemas.fact(key, "verbatim")):
            raise
        return parse_override(f"{key}={literal([item.strip() for item in value[1:-1].split(',')])}")


def _fault(text: str, said: str) -> tuple[str, str]:
    """(fault, hint) of an unreadable override. said: Hydra's message."""
    key, sign, value = text.partition("=")
    name = key.lstrip("+~")
    is_key = KEY.fullmatch(name) is not None
    if not sign:
        return "this is not key=value.", f"write {text}=..." if is_key else EXAMPLE
    if element := ELEMENT.fullmatch(name):
        return "a list is given as a whole.", f"{element[1]}=[...]"
    if not is_key:
        message = f"'{name}' is no key: a key is made of letters a-z, digits, _ and dots."
        return message, EXAMPLE
    message = f"the value {value} cannot be read: {said}."
    hint = schemas.declared_type(name)
    if hint is None or fits("", hint):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return message, f"to give it as a text: '{key}=\"{text}\"'"
    if fits([""], hint) and schemas.fact(name, "verbatim") and value[:1] not in "[\"'":
        return message, f"{key}=[{value}]"
    if fits([""], hint) or typing.get_origin(hint) is dict:
        return message, "quotes around each text in it that has signs, like '[\"a=b\", c]'"
    return message, f"{name} is {type_in_words(hint)}"
