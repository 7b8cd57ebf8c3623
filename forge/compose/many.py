"""Many compositions that differ in values: the groups are composed once for each distinct set of
choices, which takes a quarter of a second, and a value takes a tenth of a millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from forge.compose.composition import Composition, compose, compose_choices, set_values
from forge.compose.engine import Library
from forge.compose.grammar import read_override
from forge.compose.hugging_face import PATH
from forge.compose.hydra_adapter import Override, OverrideType
from forge.compose.overrides import open_ends
from forge.compose.tree import LISTS, node_at
from forge.config import schemas
from forge.config.hydra_names import translate
from forge.config.root import Config
from forge.config.rule import put


@dataclass(frozen=True, kw_only=True)
class Base:
    """The composition of a set of group choices, and the typed config."""

    composition: Composition
    config: Config


class Composer:
    """Compose many sets of overrides, with the results of `compose` and `Composition.typed`."""

    def __init__(self, config_dirs: Sequence[str] = ()) -> None:
        self.config_dirs = tuple(config_dirs)
        self._bases: dict[tuple[str, ...], Base | None] = {}
        self._read = cache(lambda text: read_override(translate(text)))
        self._library = cache(Library)
        self._dicts = tuple(f"{key}." for key in (*schemas.dicts(), *schemas.open_dicts()))

    def __call__(self, overrides: Sequence[str]) -> tuple[Composition, Config]:
        """The composition and its config. Raises ConfigError when nothing composes at all."""
        base_overrides = tuple(text for text in overrides if not self._is_plain(text))
        base = self._base(base_overrides)
        if base is None:
            composition = compose(overrides, config_dirs=self.config_dirs)
            return composition, composition.typed()
        plain = [self._read(text) for text in overrides if text not in base_overrides]
        return self._with(base, overrides, plain)

    def _is_plain(self, text: str) -> bool:
        """Whether an override sets an option of every config to a single value."""
        override = self._read(text)
        if not isinstance(override, Override) or override.type is not OverrideType.CHANGE:
            return False
        key = override.key_or_group
        if key == PATH:  # model.path decides on the other options of the model
            return False
        is_option = ("." in key or key == "seed") and "/" not in key
        is_option &= not f"{key}.".startswith(("hydra.", *self._dicts)) and not override.package
        has_one = not override.is_sweep_override() and not isinstance(override.value(), dict)
        return is_option and has_one and not re.search(r"\$\{|\?\?\?", str(override.value()))

    def _base(self, overrides: tuple[str, ...]) -> Base | None:
        """The composition of the base overrides; None where values may depend on each other."""
        if overrides not in self._bases:
            composition, assigned = compose_choices(
                overrides, config_dirs=self.config_dirs, read_from=self._library
            )
            set_values(composition, assigned)
            tree = composition.tree
            sets_dict = any(not o.is_delete() and isinstance(o.value(), dict) for o in assigned)
            base = None
            if not (sets_dict or _has_references(tree) or open_ends(tree, composition.written_at)):
                config = composition.typed()
                config.set_source(config.overrides, config.preset, track=False)
                base = Base(composition=composition, config=config)
            self._bases[overrides] = base
        return self._bases[overrides]

    def _with(
        self, base: Base, typed: Sequence[str], assigned: Sequence[Any]
    ) -> tuple[Composition, Config]:
        """Set the values in the checking tree, copy the checked values to the config, and restore
        the tree.
        """
        composition = replace(
            base.composition,
            overrides=tuple(typed),
            applied=dict(base.composition.applied),
            problems=list(base.composition.problems),
        )
        config = base.config.clone()
        keys = dict.fromkeys(override.key_or_group for override in assigned)
        slots = [(key, *slot) for key in keys if (slot := _place(composition.tree, key))]
        values_before = [_plain(section, name) for _, section, name in slots]
        try:
            set_values(composition, assigned)
            for key, section, name in slots:
                if key in composition.applied:
                    put(config, key, _plain(section, name))
        finally:
            for (_, section, name), value in zip(slots, values_before, strict=True):
                section[name] = value
        search = base.config.overrides[: len(self.config_dirs)]
        config.set_source((*search, *typed), config.preset, track=False)
        return composition, config


def _place(tree: DictConfig, key: str) -> tuple[DictConfig, str] | None:
    """The section of an option, and the option's name in the section; None without a section."""
    above, _, name = key.rpartition(".")
    section = node_at(tree, above) if above else tree
    node = node_at(tree, key)
    return None if node is None or isinstance(node, DictConfig) else (section, name)


def _plain(section: DictConfig, name: str) -> Any:
    """The value of an option as plain data."""
    value = section[name]
    return OmegaConf.to_object(value) if isinstance(value, LISTS) else value


def _has_references(node: Any) -> bool:
    """Whether an option refers to another, as ${...}."""
    if node._is_interpolation():
        return True
    if not isinstance(node, (DictConfig, *LISTS)) or node._is_none() or node._is_missing():
        return False
    names: Any = node.keys() if isinstance(node, DictConfig) else range(len(node))
    return any(_has_references(node._get_node(name)) for name in names)
