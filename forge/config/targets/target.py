"""Rules for `_target_` in each place of the config, judged by its name: nothing is imported."""

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
"""Base classes of groups that take subclasses from the base's own package."""
OF_FORGE: dict[str, str | tuple[str, ...]] = {
    "callbacks": "forge.training.",
    "trackers": "forge.trackers.",
    "eval.tasks": "forge.tasks.",
    "environment": "forge.environments.",
    "rewards": ("forge.rewards.", "forge.training.learned_reward."),
}
"""Prefixes of forge's own classes that a group takes without trust."""
OF_USER = {
    "objective": "forge.api.Objective",
    "callbacks": "forge.api.Callback",
    "techniques": "forge.api.Technique",
    "trackers": "forge.api.Tracker",
    "eval.tasks": "forge.api.Task",
}
"""Base classes of groups that take the user's own subclasses, under a trusted prefix."""


def group_of_path(path: str) -> str:
    """The group of a config path: `callbacks` of callbacks.ema, `mixer` of model.mixer."""
    if path.startswith("eval.tasks."):
        return "eval.tasks"
    last = path.rpartition(".")[2]
    return last if last in INNER else path.partition(".")[0]


def trusted(path: str, trust: Sequence[str]) -> bool:
    """Whether a dotted path is under a prefix the user trusts."""
    return path.startswith(tuple(f"{prefix.removesuffix('.')}." for prefix in trust))


def of_forge(path: str, group: str) -> bool:
    """Whether a dotted path is under the prefix of forge's own classes of a group."""
    return group in OF_FORGE and path.startswith(OF_FORGE[group])


def of_torch(path: str, group: str) -> bool:
    """Whether a dotted path is in torch's package for a group."""
    return group in OF_TORCH and path.startswith(f"{OF_TORCH[group].rpartition('.')[0]}.")


def target_fault(
    path: Any, group: str, trust: Sequence[str] = (), *, key: str = ""
) -> tuple[str, str] | None:
    """(what is wrong, what to do) with a `_target_` in a place of the config; or None. key: the
    target's key, for the text to type.
    """
    assignment = f"{key}=" if key else ""
    targets = (getattr(schema, "_target_", "") for schema in SCHEMAS.get(group, {}).values())
    forge_targets = [target for target in targets if target.startswith("forge.")]
    if not isinstance(path, str) or not PATH.fullmatch(path):
        message = f"'{path}' is not the path of a class or function."
        return message, f"such as {assignment}{(*forge_targets, 'mypkg.Mine')[0]}"
    if (
        path in forge_targets
        or of_forge(path, group)
        or of_torch(path, group)
        or trusted(path, trust)
    ):
        return None
    if path.startswith(("forge.", "torch.")):
        classes = [f"a {OF_TORCH[group]}"] if group in OF_TORCH else []
        takes = ", ".join([*forge_targets, *classes, "your own, with run.trust=[mypkg.]"])
        meant = did_you_mean([f"{assignment}{name}" for name in closest(path, forge_targets)])
        return f"{path} may not be built for {group}.", meant or f"{group} takes {takes}"
    message = f"{path} may not be built for {group}: it is under no trusted prefix."
    return message, _to_trust(path)


def inner_faults(value: Any, path: str, trust: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, what is wrong, what to do) of each inner `_target_` of a value that is neither in
    torch's package for its group nor under a trusted prefix.
    """
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    group = path.partition(".")[0]
    for name, item in value.items() if isinstance(value, dict) else ():
        may_be = isinstance(item, str) and (of_torch(item, group) or trusted(item, trust))
        if name == "_target_" and not may_be:
            message = f"{item} is under no trusted prefix."
            yield f"{path}._target_={item}", message, _to_trust(str(item))
        yield from inner_faults(item, f"{path}.{name}", trust)


def _to_trust(path: str) -> str:
    return f"if you trust it: run.trust=[{path.partition('.')[0]}.]"
