"""What was probably meant by a value that an option does not take."""

from __future__ import annotations

import re
import typing
from typing import Any

import yaml

from forge.config import schemas
from forge.config.bounds import KINDS, fits
from forge.config.field import default_of
from forge.config.problems import shown

SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


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
        return None
    items = _items(value, inner[0])
    return items if fits(items, hint) and (origin is list or len(items) == len(inner)) else None


def several(value: Any, hint: Any) -> str:
    """The values of a sweep as they are typed, for a list of them, or a text with commas, that was
    given to an option of one value; empty where they are none.
    """
    is_plain = isinstance(value, str) and not re.search(r"[\[({\"'$]", value)
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


def example(key: str, hint: Any, value: Any) -> str:
    """The value in force of a number or of a list, as an example; empty for all else."""
    is_number = not {int, float}.isdisjoint((hint, *typing.get_args(hint)))
    is_list = isinstance(value, list)
    has_one = bool(value) if is_list else is_number and (value is not None or fits(None, hint))
    return f"for example {key}={shown(value)}" if has_one else ""


def meaning_of_dict(key: str) -> str:
    """The help text of the option that has entries, or of which a key is an entry; else empty."""
    dicts = ((n, f) for n, _, _, f in schemas.walk_options() if isinstance(default_of(f), dict))
    fitting = (f.metadata["help"] for name, f in dicts if f"{key}.".startswith(f"{name}."))
    return next(fitting, "")


def in_file(name: str, value: Any) -> str:
    """An entry as a YAML file has it."""
    text = yaml.safe_dump({name: value}, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip()[1:-1]


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
