"""Reading one override, or saying why it cannot be read."""

from __future__ import annotations

import re

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from forge.compose.engine import parse
from forge.compose.unreadable import call_fault, fault, is_endless
from forge.config.problems import COMMAND_LINE, Problem

KEY = re.compile(r"[A-Za-z_][\w-]*([./][\w-]+)*(@[\w./-]+)?", re.ASCII)
ELEMENT = re.compile(r"([A-Za-z_][\w.]*)\[\d+\]", re.ASCII)


def read(text: str) -> Override | Problem:
    """One override as Hydra's grammar has it."""
    if any(
        "\ud800" <= sign <= "\udfff" for sign in text
    ):  # what Python makes of bytes that it cannot decode
        return Problem(
            key=text,
            what="it has bytes that are no UTF-8 text.",
            fix="write it in UTF-8",
            where=COMMAND_LINE,
        )
    try:
        override = parse(text)
    except (HydraException, RecursionError):
        return _unreadable(text)
    except ValueError:  # Python reads no integer of more than 4,300 digits
        return Problem(
            key=text,
            what="it has a number of too many digits.",
            fix="a smaller one",
            where=COMMAND_LINE,
        )
    if is_endless(override):
        what, fix = call_fault(text.partition("=")[0], "range")
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)
    return override if override.key_or_group else _unreadable(text)


def _unreadable(text: str) -> Problem:
    key, sign, value = text.partition("=")
    name = key.lstrip("+~")
    if KEY.fullmatch(name) and sign:
        what, fix = fault(key, value)
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)
    if KEY.fullmatch(name):
        return Problem(
            key=text, what="this is not key=value.", fix=f"write {text}=...", where=COMMAND_LINE
        )
    element = ELEMENT.fullmatch(name)
    if element and sign:
        return Problem(
            key=text,
            what="a list is given as a whole.",
            fix=f"{element[1]}=[...]",
            where=COMMAND_LINE,
        )
    what = (
        f"'{name}' is no key: a key is made of letters a-z, digits, _ and dots."
        if sign
        else "this is not key=value."
    )
    return Problem(
        key=text or "''",
        what=what,
        fix="group=option or key=value, such as model=small or optimizer.lr=1e-3",
        where=COMMAND_LINE,
    )
