"""What `_target_` may name in each place of the config, checked by name alone: nothing of it is
imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from forge.config.problems import closest, did_you_mean
from forge.config.schemas import SCHEMAS

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
OF_TORCH = {"model": "torch.nn.Module", "optimizer": "torch.optim.Optimizer"}
"""Places that take classes of torch: subclasses of this one, defined in its package."""
OF_USER = {
    "callbacks": "forge.training.callback.Callback",
    "trackers": "forge.training.trackers.group.Tracker",
}
"""Places that take nothing but classes of the user's: subclasses of this one, under a trusted
prefix.
"""


def place_of(path: str) -> str:
    """The place that a config path is in: `callbacks` of callbacks.ema."""
    return path.partition(".")[0]


def components(place: str) -> list[str]:
    """The targets of forge's own that a place takes: those of the schemas of its group."""
    targets = (getattr(schema, "_target_", "") for schema in SCHEMAS.get(place, {}).values())
    return [target for target in targets if target.startswith("forge.")]


def trusted(path: str, trust: Sequence[str]) -> bool:
    """Whether a dotted path is under a prefix that the user trusts."""
    return path.startswith(
        tuple(prefix if prefix.endswith(".") else f"{prefix}." for prefix in trust)
    )


def of_torch(path: str, place: str) -> bool:
    """Whether a dotted path is in the package of torch that a place takes classes of."""
    return place in OF_TORCH and path.startswith(f"{OF_TORCH[place].rpartition('.')[0]}.")


def target_fault(
    path: Any, place: str, trust: Sequence[str] = (), *, key: str = ""
) -> tuple[str, str] | None:
    """(what is wrong, what to do) with a `_target_` in a place of the config, such as `optimizer`;
    or None.

    key: its key, so that what to do can be typed.
    """
    given = f"{key}=" if key else ""
    known = components(place)
    if not isinstance(path, str) or not PATH.fullmatch(path):
        return (
            f"'{path}' is not the path of a class or function.",
            f"such as {given}{(*known, 'mypkg.Mine')[0]}",
        )
    if path in known or of_torch(path, place) or trusted(path, trust):
        return None
    if path.startswith(("forge.", "torch.")):
        takes = [
            *known,
            *([f"a {OF_TORCH[place]}"] if place in OF_TORCH else []),
            "your own, with run.trust=[mypkg.]",
        ]
        meant = did_you_mean([f"{given}{name}" for name in closest(path, known)])
        return f"{path} may not be built for {place}.", meant or f"{place} takes {', '.join(takes)}"
    return (
        f"{path} may not be built for {place}: it is under no trusted prefix.",
        f"if you trust it: run.trust=[{path.partition('.')[0]}.]",
    )


def inner_faults(value: Any, path: str, trust: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(key, what is wrong, what to do) of each `_target_` below the value at `path` that is under
    no trusted prefix.

    forge hands those on as they are; what the class does that it gives them to, nobody knows.
    """
    for name, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else ()
    ):
        if name == "_target_" and not (isinstance(item, str) and trusted(item, trust)):
            prefix = f"{str(item).partition('.')[0]}."
            yield (
                f"{path}._target_={item}",
                f"{item} is under no trusted prefix.",
                f"if you trust it: run.trust=[{prefix}]",
            )
        yield from inner_faults(item, f"{path}.{name}", trust)
