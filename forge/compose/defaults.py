"""Which defaults of a project give way: to what is typed, and to experiments that are typed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from hydra.errors import HydraException

from forge.compose.choices import OPTIONAL
from forge.compose.engine import Library
from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import GroupDefault, Override
from forge.compose.origin import node_value, nodes_of
from forge.compose.overrides import PARAMS
from forge.rundir.untrusted import option_of

ARMS, SEEDS = "sweep.ablation.arms.", "sweep.ablation.seeds"


def unreplaced_defaults(
    defaults: Sequence[str], typed: Sequence[str], searchpath: Sequence[str]
) -> list[str]:
    """The defaults not replaced by typed overrides: defaults of no key, section or group typed, or
    set by a typed experiment or debugging setup.
    """
    replaced = {option_of(text) for text in typed}
    if defaults and any(key in OPTIONAL for key in replaced):
        replaced |= set(_set_by(typed, Library(searchpath)))
    return [text for text in defaults if replaced.isdisjoint(_above(option_of(text)))]


def _above(key: str) -> Iterator[str]:
    """A key, and the sections and the group around the key."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _set_by(typed: Sequence[str], library: Library) -> Iterator[str]:
    """The keys and groups set by typed files of experiments and the like, also in a sweep."""
    for text in typed:
        key = option_of(text)
        for name in _names(text) if key in OPTIONAL else ():
            try:
                yield from _in_file(f"{key}/{name}", library)
            except (yaml.YAMLError, HydraException, OSError):
                continue  # the composition reports the fault


def _names(text: str) -> list[str]:
    override = read_override(text)
    if not isinstance(override, Override) or override.is_delete():
        return []
    value: Any = override.value()
    if override.is_choice_sweep():
        value = list(value.list)
    return [str(name) for name in (value if isinstance(value, list) else [value])]


def _in_file(config_path: str, library: Library) -> Iterator[str]:
    loaded = library.repository.load_config(config_path)
    for default in (loaded.defaults_list or []) if loaded else ():
        if isinstance(default, GroupDefault) and default.override:
            yield str(default.group).removeprefix("/")
    file = library.file_of(config_path)
    for key, _, node in nodes_of(file) if file else ():
        is_section = isinstance(node, yaml.MappingNode)
        if key.startswith(ARMS) and isinstance(node, yaml.SequenceNode):
            yield from (option_of(str(text)) for text in node_value(node))
        elif key.startswith(f"{PARAMS}."):
            yield key.removeprefix(f"{PARAMS}.")
        elif key == SEEDS:
            yield "seed"
        elif not is_section:
            yield key
