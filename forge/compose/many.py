"""Many compositions that differ in values: files and groups are composed once for each distinct set
of choices.

A composition takes a quarter of a second, nearly all of it for the groups; a value takes a tenth of
a millisecond.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import Container, DictConfig, OmegaConf

from forge.compose import overrides as values
from forge.compose.composition import Composition, apply, chosen, compose
from forge.compose.engine import Library
from forge.compose.grammar import read
from forge.config import schemas
from forge.config.field import Section
from forge.config.problems import Problem
from forge.config.root import Config
from forge.config.spelling import ours
from forge.resolve.rule import get

ENTRIES = (
    *(f"{name}." for name in schemas.free_dicts()),
    "launch.sbatch.",
    "sweep.ablation.arms.",
    "sweeper.params.",
)
"""What users add entries to."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A composition of group choices alone, and its config; `known`: its problems."""

    composition: Composition
    config: Config
    known: tuple[Problem, ...]


class Composer:
    """Gives for overrides what `compose` and `Composition.typed` give."""

    def __init__(self, config_dirs: Sequence[str] = ()) -> None:
        self.config_dirs = tuple(config_dirs)
        self._bases: dict[tuple[str, ...], Base | None] = {}
        self._read = cache(lambda text: read(ours(text)))
        self._library = cache(Library)

    def __call__(self, overrides: Sequence[str]) -> tuple[Composition, Config]:
        """The composition, with its problems, and its config. Raises ConfigError when nothing
        composes at all.
        """
        plain = {index for index, text in enumerate(overrides) if self._is_plain(text)}
        base = self._base(tuple(text for index, text in enumerate(overrides) if index not in plain))
        if base is None:
            composition = compose(overrides, config_dirs=self.config_dirs)
            return composition, composition.typed()
        return self._with(
            base, overrides, [self._read(overrides[index]) for index in sorted(plain)]
        )

    def _is_plain(self, text: str) -> bool:
        """Whether an override sets an option that every config has, to one value."""
        override = self._read(text)
        if (
            not isinstance(override, Override)
            or override.is_hydra_override()
            or override.package is not None
        ):
            return False
        key = override.key_or_group
        named = (
            ("." in key or key == "seed") and "/" not in key and not f"{key}.".startswith(ENTRIES)
        )
        one = (
            override.type is OverrideType.CHANGE
            and not override.is_sweep_override()
            and not _is_dict(override)
        )
        return named and one and "${" not in str(override.value())

    def _base(self, overrides: tuple[str, ...]) -> Base | None:
        """What the others compose to; None where one value may depend on another, and all is to be
        composed anew.
        """
        if overrides not in self._bases:
            composition, assigned = chosen(
                overrides, config_dirs=self.config_dirs, read_from=self._library
            )
            apply(composition, assigned)
            alone = not any(map(_is_dict, assigned)) and not _has_references(composition.tree)
            alone = alone and not values.open_ends(composition.tree, composition.written_at)
            self._bases[overrides] = _base_of(composition) if alone else None
        return self._bases[overrides]

    def _with(
        self, base: Base, typed: Sequence[str], assigned: Sequence[Any]
    ) -> tuple[Composition, Config]:
        """The values set in the tree, which finds what is wrong with them, and taken back once they
        are in the config.
        """
        composition = replace(
            base.composition,
            overrides=tuple(typed),
            applied=dict(base.composition.applied),
            problems=list(base.known),
        )
        config = base.config.clone()
        before: list[tuple[DictConfig, str, Any]] = []
        wrong: list[tuple[Override, Problem]] = []
        tree = composition.tree
        try:
            for override in assigned:
                key = override.key_or_group
                if (found := _node(tree, key)) is not None:
                    before.append((*found, copy.deepcopy(found[0]._get_node(found[1]))))
                problem = values.apply(tree, override, composition.library)
                if problem is not None:
                    wrong.append((override, problem))
                else:
                    composition.applied[key] = override.input_line or ""
                    assert found is not None
                    _put(config, key, found[0]._get_node(found[1]))
            composition.problems += [
                values.apply(tree, override, composition.library) or problem
                for override, problem in wrong
            ]
        finally:
            for parent, name, node in reversed(before):
                parent.__dict__["_content"][name] = node
        search = base.config.overrides[: len(self.config_dirs)]
        config.set_source((*search, *typed), config.preset, track=False)
        return composition, config


def _base_of(composition: Composition) -> Base:
    config = composition.typed()
    config.set_source(config.overrides, config.preset, track=False)
    return Base(composition=composition, config=config, known=tuple(composition.problems))


def _is_dict(override: Override) -> bool:
    return not override.is_delete() and isinstance(override.value(), dict)


def _node(tree: DictConfig, key: str) -> tuple[DictConfig, str] | None:
    """The dict that holds a key, and its name there."""
    *above, name = key.split(".")
    node: Any = tree
    for part in above:
        node = node._get_node(part) if isinstance(node, DictConfig) and part in node else None
    return (node, name) if isinstance(node, DictConfig) and name in node else None


def _put(config: Config, key: str, node: Any) -> None:
    """What to_object makes of a value, in its place of the config."""
    above, _, name = key.rpartition(".")
    section = get(config, above) if above else config
    value = OmegaConf.to_object(node) if isinstance(node, Container) else node._value()
    if isinstance(section, Section):
        setattr(section, name, value)
    else:
        section[name] = value


def _has_references(node: Any) -> bool:
    """Whether an option refers to another, as ${...}."""
    if isinstance(node, Container):
        special = node._is_interpolation()
        return special or (
            not node._is_none()
            and not node._is_missing()
            and any(map(_has_references, _children(node)))
        )
    return node._is_interpolation()


def _children(node: Any) -> list[Any]:
    return [
        node._get_node(key)
        for key in (node.keys() if isinstance(node, DictConfig) else range(len(node)))
    ]
