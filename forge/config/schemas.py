"""Schemas of each option of a polymorphic group, and their registration with Hydra."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import forge.config.adapters.ia3
import forge.config.adapters.qlora
import forge.config.data.chats
import forge.config.data.mixture  # to be imported is to be known
import forge.config.data.prompts
import forge.config.model.hub_folder
import forge.config.objectives.distill
import forge.config.objectives.grpo
import forge.config.objectives.preference
import forge.config.objectives.reward_model
import forge.config.rollouts.openai
import forge.config.tokenizers.ranked_bpe
import forge.config.tokenizers.tokenizer_files  # noqa: F401
from forge.config import optimizers, scaling
from forge.config.field import Section, default_of, types_of, variants_of
from forge.config.model import feed_forwards, mixers
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.mixers.base import Mixer
from forge.config.root import Config

if TYPE_CHECKING:
    from hydra.core.config_store import ConfigStore


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


@functools.cache
def sections() -> dict[str, type[Section]]:
    """The class of each root section: the base class where the group has variants."""
    return {name: hint for name, hint in types_of(Config).items() if _is_section(hint)}


def _in_order(base: type[Section]) -> list[type[Section]]:
    """The variants of a base: the base's own module first, then by module, whatever the import
    order.
    """
    home = base.__module__
    return sorted(variants_of(base), key=lambda v: (v.__module__ != home, v.__module__))


INNER: dict[str, type[Section]] = {"mixer": Mixer, "feed_forward": FeedForward}
"""Groups of a section inside another, as model.mixer, with their base classes."""

for package in (
    mixers,
    feed_forwards,
    optimizers,
    scaling,
):  # a file each; to be imported is to be known
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")

SCHEMAS: dict[str, dict[str, type[Section]]] = {
    group: {schema.schema_name: schema for schema in found}
    for group, base in (sections() | INNER).items()
    if (found := _in_order(base))
}


def register_schemas(root: type[Config] = Config) -> None:
    """Store every schema under `schema/<group>`. root: the class of the whole config."""
    _register(_store(), root)


@functools.cache
def _register(store: ConfigStore, root: type[Config]) -> None:
    _keep(store, "schema", "config", root)
    for group, variants in SCHEMAS.items():
        for name, node in variants.items():
            _keep(store, f"schema/{group}", name, node)


def _keep(store: ConfigStore, group: str, name: str, schema: type[Section]) -> None:
    """Store a schema as `store.store` does, but make the node only when a config is composed of it:
    most nodes are of options nobody chooses.
    """
    from hydra.core.config_store import ConfigNode

    folder: dict[str, Any] = store.repo
    for part in group.split("/"):
        folder = folder.setdefault(part, {})
    file = f"{name}.yaml"
    node: Any = _LazyNode(schema)
    folder[file] = ConfigNode(name=file, node=node, group=group, package=None, provider=None)


class _LazyNode:
    """A schema in Hydra's store, turned into a node when Hydra copies it for a config."""

    def __init__(self, schema: type[Section]):
        self.schema = schema

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from omegaconf import OmegaConf

        # A new node is nobody else's: OmegaConf would copy the value of each option.
        node = OmegaConf.structured(self.schema, flags={"no_deepcopy_set_nodes": True})
        node._set_flag("no_deepcopy_set_nodes", None)
        return node


def add(group: str, name: str, schema: type[Section]) -> None:
    """Register a schema of the user's, see `forge.config.register`."""
    call = f"forge.config.register({group!r}, {name!r}, {getattr(schema, '__qualname__', schema)})"
    if group not in SCHEMAS:
        raise ValueError(f"{call}: only these groups take further schemas: {', '.join(SCHEMAS)}")
    base = (sections() | INNER)[group]
    is_class = isinstance(schema, type) and issubclass(schema, base)
    # an undecorated subclass has no options of its own
    if not is_class or set(inspect.get_annotations(schema)) - set(schema.__dataclass_fields__):
        must = "the schema must be a dataclass(kw_only=True) that subclasses"
        raise ValueError(f"{call}: {must} {base.__module__}.{base.__name__}")
    existing = SCHEMAS[group].setdefault(name, schema)
    # a second import of a module defines the class again
    if (existing.__module__, existing.__qualname__) != (schema.__module__, schema.__qualname__):
        raise ValueError(
            f"{call}: the name is taken by {existing.__module__}.{existing.__qualname__}"
        )
    schema.schema_name = name
    SCHEMAS[group][name] = schema
    _keep(_store(), f"schema/{group}", name, schema)


def _store() -> ConfigStore:
    from hydra.core.config_store import ConfigStore  # a worker needs no Hydra

    return ConfigStore.instance()


@functools.cache
def bases() -> tuple[type[Section], ...]:
    """The base classes of the root groups with variants."""
    return tuple(sections()[group] for group in SCHEMAS if group not in INNER)


@functools.cache
def root_options() -> list[dataclasses.Field]:
    """The options at the root, in no section."""
    return [field for field in dataclasses.fields(Config) if field.name not in sections()]


@functools.cache
def free_dicts() -> list[str]:
    """The root options to which a user adds components."""
    dicts = (field for field in root_options() if isinstance(default_of(field), dict))
    return [field.name for field in dicts if field.metadata.get("free")]


def variants(group: str) -> dict[str, type[Section]]:
    """The schemas of a group by option name; under the group's own name without variants."""
    return SCHEMAS.get(group) or {group: sections()[group]}


def options_of(schema: type[Section]) -> Iterator[tuple[str, type[Section], dataclasses.Field]]:
    """Yield (name below the section, declaring class, field) of every option in a section."""
    for field in dataclasses.fields(schema):
        inner = types_of(schema)[field.name]
        if inner in INNER.values():
            for variant in SCHEMAS[field.name].values():
                for name, owner, option in options_of(variant):
                    yield f"{field.name}.{name}", owner, option
        elif _is_section(inner):
            for name, owner, option in options_of(inner):
                yield f"{field.name}.{name}", owner, option
        else:
            yield field.name, schema, field


def walk_options() -> Iterator[tuple[str, str, type[Section], dataclasses.Field]]:
    """Yield (key, variant, schema, field) of every option; shared options come once for each
    variant.
    """
    for field in root_options():
        yield field.name, "", Config, field
    for group in sections():
        for variant, schema in variants(group).items():
            for name, owner, field in options_of(schema):
                yield f"{group}.{name}", variant, owner, field


def schema_modules() -> list[str]:
    """The modules of all sections, also of inner ones."""
    names = {schema.__module__: None for _, _, schema, _ in walk_options()}
    return [name for name in names if name.startswith("forge.config.")]


def is_section(key: str) -> bool:
    """Whether a dotted key is a section's, and not an option's or an entry's of an option."""
    return any(name.startswith(f"{key}.") for name, *_ in walk_options())


def declared_type(key: str) -> Any:
    """The declared type of an option, or of an entry of a dict; None for an unknown key."""
    for name, _, schema, field in walk_options():
        hint = types_of(schema)[field.name]
        if key == name:
            return hint
        if key.startswith(f"{name}."):
            return typing.get_args(hint)[1] if typing.get_origin(hint) is dict else None
    return None


def fact(key: str, name: str) -> Any:
    """A fact that `opt` states of an option, such as `time`; None for an unknown option."""
    return next((f.metadata.get(name) for option, _, _, f in walk_options() if option == key), None)


@functools.cache
def dicts() -> dict[str, str]:
    """The dicts of one type of value, open to users, by key, with their help texts."""
    dict_options = ((key, f) for key, _, _, f in walk_options() if isinstance(default_of(f), dict))
    free = open_dicts()
    return {key: field.metadata["help"] for key, field in dict_options if key not in free}


@functools.cache
def open_dicts() -> tuple[str, ...]:
    """The keys of dicts of anything, dicts too, as `callbacks`."""
    hints = {key: types_of(schema)[f.name] for key, _, schema, f in walk_options()}
    return tuple(key for key, hint in hints.items() if hint == dict[str, Any])


def in_open_dict(key: str) -> bool:
    """Whether a key is an open dict, or an entry of an open dict."""
    return f"{key}.".startswith(tuple(f"{name}." for name in open_dicts()))


def keys_with(name: str) -> list[str]:
    """The keys of all options with a fact of `opt`, such as `path`."""
    return [key for key, _, _, field in walk_options() if field.metadata.get(name)]
