"""Overrides of free dicts, `callbacks` and `trackers`: entries that a user adds, changes and
removes.
"""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from forge.config.problems import COMMAND_LINE, Problem, closest, did_you_mean


def apply(tree: DictConfig, override: Override) -> Problem | None:
    """Add (`+`), change or remove (`~`) what a key in a free dict names, or say why that cannot be."""
    text, key = override.input_line or "", override.key_or_group

    def problem(what: str, fix: str) -> Problem:
        return Problem(key=text, what=what, fix=fix, where=COMMAND_LINE)

    if override.package is not None:
        return problem(
            "only a group takes @.", f"write {text.replace('@' + override.package, '', 1)}"
        )
    if override.is_sweep_override():
        return problem(
            f"{key} has several values, and this is not a sweep.",
            f"one value, or -m for a sweep; {key}=[...] for a list",
        )
    if "." not in key and not override.is_delete() and not isinstance(override.value(), dict):
        return problem(
            f"{key} is a dict of entries by name.", f"+{key}.NAME._target_=mypkg.Mine adds one"
        )
    parent, name = _place(tree, key)
    if isinstance(parent, str):
        return problem(*(parent, name))
    exists = parent is not None and name in parent
    adds = override.type in (OverrideType.ADD, OverrideType.FORCE_ADD)
    if override.is_delete():
        return (
            _delete(override, parent, problem)
            if parent and exists
            else problem(*_absent(tree, key, adding=False))
        )
    if exists and override.type is OverrideType.ADD:
        return problem(f"{key} exists; + is for what does not.", f"write {text.lstrip('+')}")
    if not exists and not adds:
        return problem(*_absent(tree, key, adding=True, text=text))
    try:
        OmegaConf.update(tree, key, override.value(), merge=True, force_add=True)
    except OmegaConfBaseException as error:
        return problem(
            f"it does not fit {key}: {str(error).splitlines()[0]}",
            f"{key.partition('.')[0]} holds entries by name",
        )
    return None


def _place(tree: DictConfig, key: str) -> tuple[Any, str]:
    """The dict that holds, or would hold, the last part of a key: None where it is absent too. A
    fault as (what, fix).
    """
    *above, name = key.split(".")
    node: Any = tree
    for depth, part in enumerate(above, 1):
        node = node._get_node(part) if part in node else None
        if node is None:
            return None, name
        if isinstance(node, ListConfig):
            return (
                f"{'.'.join(above[:depth])} is a list, and is given as a whole.",
                f"{'.'.join(above[:depth])}=[...]",
            )
        if not OmegaConf.is_dict(node):
            return (
                f"{'.'.join(above[:depth])} is a value and has nothing below it.",
                f"write {'.'.join(above[:depth])}=...",
            )
    return node, name


def _delete(override: Override, parent: DictConfig, problem: Any) -> Problem | None:
    key = override.key_or_group
    if "." not in key:
        return problem(f"{key} itself cannot be removed; its entries can.", f"~{key}.NAME")
    if override.value() is not None:
        return problem("a removal takes no value.", f"write ~{key}")
    with open_dict(parent):
        del parent[key.rpartition(".")[2]]
    return None


def _absent(tree: DictConfig, key: str, *, adding: bool, text: str = "") -> tuple[str, str]:
    """What is said of a key that does not exist: the first part of it that is missing, and what is
    near.
    """
    parts = key.split(".")
    depth = 1
    while parts[depth] in (node := OmegaConf.select(tree, ".".join(parts[:depth]))):
        depth += 1
    above, part, names = ".".join(parts[:depth]), parts[depth], [str(name) for name in node]
    value = f"={text.partition('=')[2]}" if adding else ""
    meant = [
        f"{'' if adding else '~'}{'.'.join([above, near, *parts[depth + 1 :]])}{value}"
        for near in closest(part, names)
    ]
    fix = did_you_mean(meant)
    add = (
        f"+{text} adds it" if adding else (f"it has {', '.join(names)}" if names else "it is empty")
    )
    return f"{above} has no '{part}'.", f"{fix.removesuffix('?')}? {add}" if fix else add
