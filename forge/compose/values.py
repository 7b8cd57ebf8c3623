"""What was probably meant by a value that an option does not take."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any

from forge.config import schemas
from forge.config.adapters.adapter import in_ours
from forge.config.bounds import KINDS, fits, kind, length_fault
from forge.config.problems import shown

SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def mistyped(
    key: str, text: str, value: Any, hint: Any, now: Any, write: Callable[[Any], str]
) -> tuple[str, str]:
    """(what is wrong, what to do) with a value of another type. text: the value as it is shown,
    now: the value in force, write: how a value is written where this one is.
    """
    if fault := length_fault(key, value, hint):
        return fault, ""
    found, fix = meant(key, value, hint), ""
    if found is not None:
        fix = write(found)
    elif sweep := several(value, hint):
        instead = schemas.fact(key, "not_swept")
        fix = f"{key}={sweep} with -m, for a sweep over these" + (f"; {instead}" if instead else "")
    elif isinstance(now, int | float | list) and not isinstance(now, bool) and now != []:
        fix = f"for example {write(now)}"
    fix = fix or next((help for n, help in schemas.dicts().items() if key.startswith(n)), "")
    return f"{key} is {kind(hint)}; {text} is not.", fix


def meant(key: str, value: Any, hint: Any) -> Any:
    """The value of the declared type that was probably meant; None where there is no telling."""
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
    """The values of a sweep as they are typed, for a list of them, or a text with commas, that was
    given to an option of one value; empty where they are none.
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
    """The minutes of a time as Slurm has it, D-HH:MM:SS, HH:MM:SS, D-HH:MM or D-HH, rounded up;
    None for any other text.
    """
    found = SLURM_TIME.fullmatch(text)
    if found is None or not (found[1] or found[4]):
        return None
    days, hours, of_hour, seconds = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + of_hour + (seconds > 0)


def of_text(text: str, element: type) -> Any:
    """A text as a value of a type, where it is one."""
    try:
        return element(text.strip()) if element in KINDS and element is not bool else text
    except ValueError:
        return text


def _items(value: Any, element: Any) -> list[Any]:
    """The elements that a value stands for which is no list of them."""
    if value is None:
        return []
    if isinstance(value, list):
        return [item for inner in value for item in _items(inner, element)]
    if isinstance(value, str):
        texts = [value] if element is str else value.split(",")
        return [of_text(text, element) for text in texts]
    return [str(value)] if element is str and isinstance(value, int | float) else [value]
