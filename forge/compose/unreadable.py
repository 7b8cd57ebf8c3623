"""A value that Hydra's grammar does not read: why, and how it would be typed."""

from __future__ import annotations

import re
import typing

from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException

from forge.compose.engine import parse
from forge.config import schemas
from forge.config.bounds import fits, kind
from forge.config.problems import typed

EXAMPLES = {
    "choice": "choice(a, b)",
    "range": "range(START, STOP[, STEP])",
    "interval": "interval(LOW, HIGH)",
}
FUNCTIONS = (
    *EXAMPLES,
    "glob",
    "sort",
    "shuffle",
    "tag",
    "int",
    "float",
    "str",
    "bool",
    "json_str",
    "extend_list",
)
ANY_CALL = re.compile(r"\s*([A-Za-z_]\w*)\(.*\)\s*", re.DOTALL)
CALL = re.compile(r"\s*(choice|range|interval)\(([^()]*)\)\s*")
QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
STRAY = re.compile(rf"({QUOTED})|(?:^|(?<=[\[({{]))\s*,|,(?=\s*(?:[,\])}}]|$))")
PIECE = re.compile(rf"""({QUOTED})|([^\[\]{{}},"']+)""")


def fault(key: str, value: str) -> tuple[str, str]:
    """What is wrong with a value that cannot be read, and what to do. key: with its signs."""
    if (call := CALL.fullmatch(value)) and (call[1] != "choice" or not call[2].strip(" ,")):
        return call_fault(key, call[1])
    if (other := ANY_CALL.fullmatch(value)) and other[1] not in FUNCTIONS:
        listed = "sweeps have choice, range, interval, glob, sort, shuffle and tag(log, interval(LOW, HIGH))"
        return f"there is no function {other[1]}().", f"{listed}; {_other(key, value)}"
    inner = value.strip()[1:-1]
    if (
        re.fullmatch(r"\s*(\([^()]*\)|{[^{}:]*})\s*", value)
        and "," in inner
        and _readable(f"{key}={inner}")
    ):
        return (
            "several values have commas between them, and nothing around them.",
            f"write {key}={inner}",
        )
    full = _without_stray_commas(value)
    if full != value and _readable(f"{key}={full}"):
        return "a value is missing beside a comma.", f"write {typed(key, full.strip() or '...')}"
    in_brackets = (
        value
        if value[:1] + value[-1:] in ("[]", "{}")
        else f"[{value}]"
        if _takes_list(key)
        else ""
    )
    if in_brackets and _readable(f"{key}={with_quotes(in_brackets)}"):
        what = f"the value {value} cannot be read: a sign in it needs quotes."
        return what, f"write {typed(key, with_quotes(in_brackets))}"
    what = f"the value {value} cannot be read: a bracket or quote is left open, or a sign in it needs quotes."
    return what, _other(key, value)


def call_fault(key: str, function: str) -> tuple[str, str]:
    """What a function takes that was given something else."""
    takes = (
        "values, with commas between them"
        if function == "choice"
        else "numbers, and a step that is not 0"
        if function == "range"
        else "two numbers"
    )
    return f"{function} takes {takes}.", f"'{key}={EXAMPLES[function]}'" + (
        " with numbers" if function != "choice" else ""
    )


def is_endless(override: Override) -> bool:
    """Whether a range never stops, as its step is 0."""
    value = None if override.is_delete() else override.value()
    return isinstance(value, RangeSweep) and value.step == 0


def with_quotes(value: str) -> str:
    """A list or dict with quotes around each element that cannot be read without them."""

    def quote(match: re.Match[str]) -> str:
        before, text, after = re.findall(r"^(\s*(?:[\w.-]+:\s+)?)(.*?)(\s*)$", match[0], re.DOTALL)[
            0
        ]
        return (
            match[0]
            if match[1] or not text or _readable(f"x=[{text}]")
            else f"{before}{_quoted(text)}{after}"
        )

    return PIECE.sub(quote, value)


def as_text(key: str, value: str) -> str:
    """An override that gives a value as a text, as it is typed."""
    return f"'{key}={_quoted(value)}'"


def _other(key: str, value: str) -> str:
    """What to do with a value that cannot be read where no change of it can."""
    hint = schemas.declared(key.lstrip("+"))
    if hint is None or fits("", hint) or fits([""], hint):
        return f"to give it as a text: {as_text(key, value)}"
    return f"{key.lstrip('+')} is {kind(hint)}"


def _without_stray_commas(value: str) -> str:
    while (fewer := STRAY.sub(lambda match: match[1] or "", value)) != value:
        value = fewer
    return value


def _takes_list(key: str) -> bool:
    return typing.get_origin(schemas.declared(key.lstrip("+"))) in (list, tuple)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _readable(text: str) -> bool:
    try:
        parse(text)
    except (HydraException, RecursionError, ValueError):
        return False
    return True
