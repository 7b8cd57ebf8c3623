"""Options given as a dict of Python, as the overrides that set them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from forge.config import schemas
from forge.config.problems import literal, refusal

Options = Sequence[str] | Mapping[str, Any]
"""Overrides as they are typed, or a dict of options, which may be nested."""

CHOICE = re.compile(r"[A-Za-z_][\w/.-]*", re.ASCII)
FIX = "a text, a number, True, False, None, or a list or dict of these"


def texts(options: Options) -> list[str]:
    """Overrides of options. A text in a dict stays a text, with commas, braces and quotes, and
    `${...}` is the value of another option. Raises ConfigError for a value of an unsupported type.
    """
    if isinstance(options, str):
        message = "overrides come as a list of texts, or as a dict of options."
        raise refusal(options, message, f"[{options!r}]")
    return list(_walk(options)) if isinstance(options, Mapping) else list(options)


def value_text(key: str, value: Any) -> str:
    """A value behind the `=` of an override of `key`. Raises ConfigError."""
    is_group = "." not in key.partition("@")[0]
    if isinstance(value, str) and is_group and CHOICE.fullmatch(value):
        return value
    return literal(_plain(key, value))


def _walk(options: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    for name, value in options.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and _has_options_below(key):
            yield from _walk(value, key)
        else:
            bare = key.lstrip("+~")
            sign = "++" if schemas.in_open_dict(bare) and key == bare else ""  # set it, or add it
            yield f"{sign}{key}={value_text(bare, value)}"


def _has_options_below(key: str) -> bool:
    """Whether a dict at this key is of options, and is no value itself."""
    entry = key.rpartition(".")[0]
    return not (schemas.in_open_dict(entry) or key in schemas.dicts())


def _plain(key: str, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(key, inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(key, inner) for inner in value]
    if isinstance(value, Real):  # of numpy
        return int(value) if isinstance(value, Integral) else float(value)
    raise refusal(key, f"no option takes a value of type {type(value).__name__}.", FIX)
