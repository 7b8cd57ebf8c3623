"""What `_target_` may name in each place of the config, judged by its name: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from forge.config.problems import closest, did_you_mean
from forge.config.schemas import INNER, SCHEMAS

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
OF_TORCH = {
    "model": "torch.nn.Module",
    "optimizer": "torch.optim.Optimizer",
    "scheduler": "torch.optim.lr_scheduler.LRScheduler",
}
"""Places that take subclasses of these, defined in their package."""
OF_FORGE = {"callbacks": "forge.training.", "trackers": "forge.trackers."}
"""Prefixes under which places take forge's own subclasses of what is below, without trust."""
OF_USER = {
    "objective": "forge.api.Objective",
    "callbacks": "forge.api.Callback",
    "techniques": "forge.api.Technique",
    "trackers": "forge.api.Tracker",
}
"""Places that take subclasses of these, the user's own under a trusted prefix."""


def place_of(path: str) -> str:
    """The place that a config path is in: `callbacks` of callbacks.ema, `mixer` of model.mixer."""
    last = path.rpartition(".")[2]
    return last if last in INNER else path.partition(".")[0]


def trusted(path: str, trust: Sequence[str]) -> bool:
    """Whether a dotted path is under a prefix that the user trusts."""
    return path.startswith(tuple(f"{prefix.removesuffix('.')}." for prefix in trust))


def of_forge(path: str, place: str) -> bool:
    """Whether a dotted path is where a place takes forge's own classes from."""
    return place in OF_FORGE and path.startswith(OF_FORGE[place])


def of_torch(path: str, place: str) -> bool:
    """Whether a dotted path is in the package of torch that a place takes classes of."""
    return place in OF_TORCH and path.startswith(f"{OF_TORCH[place].rpartition('.')[0]}.")


def target_fault(
    path: Any, place: str, trust: Sequence[str] = (), *, key: str = ""
) -> tuple[str, str] | None:
    """(what is wrong, what to do) with a `_target_` in a place of the config; or None. key: of the
    target, for what to type.
    """
    given = f"{key}=" if key else ""
    targets = (getattr(schema, "_target_", "") for schema in SCHEMAS.get(place, {}).values())
    known = [target for target in targets if target.startswith("forge.")]
    if not isinstance(path, str) or not PATH.fullmatch(path):
        what = f"'{path}' is not the path of a class or function."
        return what, f"such as {given}{(*known, 'mypkg.Mine')[0]}"
    if path in known or of_forge(path, place) or of_torch(path, place) or trusted(path, trust):
        return None
    if path.startswith(("forge.", "torch.")):
        classes = [f"a {OF_TORCH[place]}"] if place in OF_TORCH else []
        takes = ", ".join([*known, *classes, "your own, with run.trust=[mypkg.]"])
        meant = did_you_mean([f"{given}{name}" for name in closest(path, known)])
        return f"{path} may not be built for {place}.", meant or f"{place} takes {takes}"
    what = f"{path} may not be built for {place}: it is under no trusted prefix."
    return what, _to_trust(path)


def inner_faults(value: Any, path: str, trust: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(key, what is wrong, what to do) of each `_target_` inside a value that is neither of the
    package of torch that its place takes classes of, nor under a trusted prefix.
    """
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    place = path.partition(".")[0]
    for name, item in value.items() if isinstance(value, dict) else ():
        may_be = isinstance(item, str) and (of_torch(item, place) or trusted(item, trust))
        if name == "_target_" and not may_be:
            what = f"{item} is under no trusted prefix."
            yield f"{path}._target_={item}", what, _to_trust(str(item))
        yield from inner_faults(item, f"{path}.{name}", trust)


def _to_trust(path: str) -> str:
    return f"if you trust it: run.trust=[{path.partition('.')[0]}.]"
