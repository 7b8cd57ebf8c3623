"""A composed tree: its options, and of each what it declares and the value in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import Container, DictConfig, OmegaConf

from forge.config import schemas
from forge.config.field import Section, types_of


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An option as its class has it: its type, its bounds and choices."""

    hint: Any
    metadata: Mapping[str, Any]


def section_at(tree: DictConfig, key: str) -> DictConfig:
    """The section at a dotted key; the tree itself for an empty one."""
    return OmegaConf.select(tree, key) if key else tree


def declared(tree: DictConfig, key: str) -> Declared | None:
    """What an option declares; None for what has no class, such as an entry of a free dict, and for
    a section.
    """
    above, _, name = key.rpartition(".")
    schema = OmegaConf.get_type(section_at(tree, above))
    if (
        not isinstance(schema, type)
        or not issubclass(schema, Section)
        or name not in schema.__dataclass_fields__
    ):
        return None
    return Declared(
        hint=types_of(schema)[name], metadata=schema.__dataclass_fields__[name].metadata
    )


def in_force(tree: DictConfig, key: str) -> Any:
    """The value of an option; None, too, where it is missing or refers to another."""
    above, _, name = key.rpartition(".")
    section = section_at(tree, above)
    node = section._get_node(name) if name in section else None
    if node is None or node._is_missing() or node._is_interpolation():
        return None
    return (
        OmegaConf.to_container(node, resolve=False)
        if isinstance(node, Container) and not node._is_none()
        else node._value()
    )


def option_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values in the tree, but for the entries that a user adds to an option of a
    section.
    """
    for key, section, _ in values_of(tree):
        if OmegaConf.get_type(section) is not dict or key.partition(".")[0] in schemas.free_dicts():
            yield key


def values_of(section: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig, str]]:
    """Every value below a section: its dotted key, what holds it, and its name there."""
    for name in section:
        node = section._get_node(name)
        if (
            isinstance(node, DictConfig)
            and node
            and not (node._is_missing() or node._is_interpolation())
        ):
            yield from values_of(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section, str(name)
