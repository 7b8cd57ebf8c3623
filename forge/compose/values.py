"""What was probably meant by a value that an option does not take."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any

from forge.config import schemas
from forge.config.adapters.adapter import in_ours
from forge.config.bounds import KINDS, fits, length_fault, type_in_words
from forge.config.problems import shown

SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def mistyped(
    key: str, text: str, value: Any, hint: Any, now: Any, write: Callable[[Any], str]
) -> tuple[str, str]:
    """(fault, advice) of a value of another type. text: the value as shown, now: the value in
    force, write: formats a value for the place of the wrong value.
    """
    if fault := length_fault(key, value, hint):
        return fault, ""
    correct, advice = _guess(key, value, hint), ""
    if correct is not None:
        advice = write(correct)
    elif sweep := several(value, hint):
        instead = schemas.fact(key, "not_swept")
        advice = f"{key}={sweep} with -m, for a sweep over these" + (
            f"; {instead}" if instead else ""
        )
    elif isinstance(now, int | float | list) and not isinstance(now, bool) and now != []:
        advice = f"for example {write(now)}"
    advice = advice or next((help for n, help in schemas.dicts().items() if key.startswith(n)), "")
    return f"{key} is {type_in_words(hint)}; {text} is not.", advice


def _guess(key: str, value: Any, hint: Any) -> Any:
    """The probably meant value of the declared type; None without a good guess."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if schemas.fact(key, "time"):
        return minutes(str(value))
    if isinstance(value, str) and int in (hint, *inner):
        number = of_text(value, float)  # YAML reads 1e3 as a text
        if isinstance(number, float) and number.is_integer():
            return int(number)
    if origin not in (list, tuple):
        if not isinstance(value, list) or len(value) != 1 or origin is dict:
            return None
        if schemas.fact(key, "verbatim"):
            return f"[{value[0]}]"
        return value[0] if several(value, hint) else None
    items = _items(value, inner[0])
    if key.endswith("adapter.target_modules"):
        items = in_ours(items)
    return items if fits(items, hint) and (origin is list or len(items) == len(inner)) else None


def several(value: Any, hint: Any) -> str:
    """The values of a sweep as typed, for a list, or a text with commas, given to an option of a
    single value; empty for any other value.
    """
    is_plain = isinstance(value, str) and "," in value and not re.search(r"[\[({\"'$]", value)
    items = value if isinstance(value, list) else value.split(",") if is_plain else []
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind in (int, float, bool, str)]
    fitting = all(
        any(fits(of_text(item, kind) if isinstance(item, str) else item, kind) for kind in kinds)
        for item in items
    )
    if typing.get_origin(hint) in (list, tuple, dict) or not fitting:
        return ""
    return ",".join(shown(item).strip() for item in items)


def option_below(section: str) -> str:
    """The first option of a section."""
    names = (name for name, *_ in schemas.walk_options() if "._" not in name)
    return next(name for name in names if name.startswith(f"{section}."))


def minutes(text: str) -> int | None:
    """The minutes of a time of Slurm, D-HH:MM:SS, HH:MM:SS, D-HH:MM or D-HH, rounded up; None for
    any other text.
    """
    match = SLURM_TIME.fullmatch(text)
    if match is None or not (match[1] or match[4]):
        return None
    days, hours, of_hour, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + of_hour + (seconds > 0)


def of_text(text: str, element: type) -> Any:
    """A text as a value of a type; unchanged for a text of another type."""
    try:
        return element(text.strip()) if element in KINDS and element is not bool else text
    except ValueError:
        return text


def _items(value: Any, element: Any) -> list[Any]:
    """The elements meant by a value other than a list."""
    if value is None:
        return []
    if isinstance(value, list):
        return [item for inner in value for item in _items(inner, element)]
    if isinstance(value, str):
        texts = [value] if element is str else value.split(",")
        return [of_text(text, element) for text in texts]
    return [str(value)] if element is str and isinstance(value, int | float) else [value]
