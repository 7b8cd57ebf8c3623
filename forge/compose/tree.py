"""A composed tree: its options, and of each what it declares and the value in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import omegaconf
from omegaconf import Container, DictConfig, ListConfig, OmegaConf

from forge.config import schemas
from forge.config.field import Section, types_of

LISTS: tuple[type, ...] = (ListConfig, getattr(omegaconf, "TupleConfig", ListConfig))
"""What OmegaConf holds lists and tuples as; up to 2.3 a tuple is a ListConfig too."""


class Declared(NamedTuple):
    """An option's declaration in its class: the type, and the metadata of the field."""

    hint: Any
    metadata: Mapping[str, Any]


def node_at(tree: DictConfig, key: str | Sequence[Any]) -> Any:
    """The node of OmegaConf at a dotted key, or at the parts of a key; None without a node."""
    node: Any = tree
    for part in key.split(".") if isinstance(key, str) else key:
        exists = isinstance(node, DictConfig) and isinstance(part, str) and has(node, part)
        node = node._get_node(part) if exists else None
    return node


def has(node: DictConfig, name: str) -> bool:
    """Whether a dict has this name, even with a missing value."""
    return name in node or OmegaConf.is_missing(node, name)


def find_declaration(tree: DictConfig, key: str) -> Declared | None:
    """The declaration of an option; None for a section, and for an entry of a free dict."""
    above, _, name = key.rpartition(".")
    schema = OmegaConf.get_type(OmegaConf.select(tree, above) if above else tree)
    if not isinstance(schema, type) or not issubclass(schema, Section):
        return None
    field = schema.__dataclass_fields__.get(name)
    hint = types_of(schema).get(name)
    if field is None or (isinstance(hint, type) and issubclass(hint, Section)):
        return None
    return Declared(hint, field.metadata)


def value_in_force(tree: DictConfig, key: str) -> Any:
    """The value of an option; None also for a missing value, and for an interpolation."""
    node = node_at(tree, key)
    if node is None or node._is_missing() or node._is_interpolation() or node._is_none():
        return None
    if isinstance(node, Container):
        value: Any = OmegaConf.to_container(node, resolve=False)
        return list(value) if isinstance(value, tuple) else value
    return node._value()


def option_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values in the tree, but for entries of dicts inside a section."""
    for key, section, _ in values_of(tree):
        if OmegaConf.get_type(section) is not dict or schemas.in_open_dict(key):
            yield key


def values_of(section: DictConfig, prefix: str = "") -> Iterator[tuple[str, DictConfig, str]]:
    """Every value below a section: its dotted key, the dict around it, and its name."""
    for name in section:
        node = section._get_node(name)
        is_open = node is not None and (node._is_missing() or node._is_interpolation())
        if isinstance(node, DictConfig) and node and not is_open:
            yield from values_of(node, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", section, str(name)
