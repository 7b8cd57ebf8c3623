"""What an option takes, in words, and what was probably meant by a value of another type."""

from __future__ import annotations

import re
import typing
from typing import Any

import yaml

from forge.config import schemas
from forge.config.bounds import KINDS, fits, kind
from forge.config.problems import shown

ARMS = "sweep.ablation.arms"
SLURMS = re.compile(
    r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)|(?P<rest>\d+(?::\d+)?))"
)


def said(key: str, hint: Any) -> str:
    """The declared type of an option, or of an entry of one, in words."""
    if key.startswith(f"{ARMS}."):
        return "a list of overrides"
    return "a dict of lists of overrides, by the names of the arms" if key == ARMS else kind(hint)


def meant(key: str, value: Any, hint: Any) -> Any:
    """The value of the declared type that was probably meant, of the arms of an ablation at least
    an example; None where there is none.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if schemas.said(key, "time"):
        return minutes(str(value))
    if key == ARMS:
        named = (
            value
            if isinstance(value, list) and all(isinstance(name, str) for name in value)
            else None
        )
        return {name: [] for name in named} if named else {"base": [], "wide": ["model.dim=256"]}
    if (
        isinstance(value, str)
        and int in (hint, *inner)
        and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value)
        and float(value).is_integer()
    ):
        return int(float(value))
    if origin not in (list, tuple):
        return None
    of_arm = key.startswith(f"{ARMS}.")
    items = _items(value, inner[0], overrides=of_arm)
    fitting = fits(items, hint) and (origin is list or len(items) == len(inner))
    return items if fitting and (not of_arm or all("=" in item for item in items)) else None


def several(value: Any, hint: Any) -> str:
    """The values of a sweep as they are typed, for a list of them, or a text with commas, that was
    given to an option of one value.
    """
    plain = isinstance(value, str) and not re.search(r"[\[({\"'$]", value)
    items = value if isinstance(value, list) else value.split(",") if plain else []
    single = typing.get_origin(hint) not in (list, tuple, dict)
    kinds = [one for one in (typing.get_args(hint) or (hint,)) if one in (int, float, bool, str)]
    fitting = [
        any(fits(of_text(item, one) if isinstance(item, str) else item, one) for one in kinds)
        for item in items
    ]
    return (
        ",".join(shown(item).strip() for item in items) if single and items and all(fitting) else ""
    )


def below(key: str) -> str:
    """An option of a section, as an example."""
    return next(
        f"{name}=..."
        for name, *_ in schemas.walk_options()
        if name.startswith(f"{key}.") and "._" not in name
    )


def example(key: str, hint: Any, value: Any) -> str:
    """The value in force of a number or of a list, as an example; empty where it is empty, and for
    all else.
    """
    is_number = not {int, float}.isdisjoint((hint, *typing.get_args(hint))) and not isinstance(
        value, list
    )
    legal = value is not None or fits(None, hint)
    return (
        f"for example {key}={shown(value)}"
        if (is_number and legal) or (isinstance(value, list) and value)
        else ""
    )


def in_file(name: str, value: Any) -> str:
    """An entry as a file has it."""
    return yaml.safe_dump(
        {name: value}, default_flow_style=True, width=10**6, allow_unicode=True
    ).strip()[1:-1]


def minutes(text: str) -> int | None:
    """The minutes of a time as Slurm has it, D-HH:MM:SS, HH:MM:SS, D-HH:MM or D-HH, rounded up;
    None for any other text.
    """
    found = SLURMS.fullmatch(text)
    if found is None or not (found["days"] or found["hours"]):
        return None
    hours, of_hour = (found["rest"] or f"{found['hours']}:{found['minutes']}").partition(":")[::2]
    return (
        (int(found["days"] or 0) * 24 + int(hours)) * 60
        + int(of_hour or 0)
        + (int(found["seconds"] or 0) > 0)
    )


def of_text(text: str, element: type) -> Any:
    """A text as an element of a list, where it is one."""
    try:
        return element(text.strip()) if element in KINDS and element is not bool else text
    except ValueError:
        return text


def _items(value: Any, element: Any, *, overrides: bool) -> list[Any]:
    """The elements that a value stands for which is no list of them."""
    if value is None:
        return []
    if isinstance(value, list):
        return [item for inner in value for item in _items(inner, element, overrides=overrides)]
    if isinstance(value, dict) and overrides:
        return [f"{key}={shown(inner)}" for key, inner in value.items()]
    if isinstance(value, str):
        several = (overrides or element is not str) and not re.search(r"[\[({\"']", value)
        return [of_text(text, element) for text in (value.split(",") if several else [value])]
    return [str(value)] if element is str and isinstance(value, int | float) else [value]
