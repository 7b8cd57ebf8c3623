"""Groups and values composed to a tree, by Hydra's engine behind hydra_adapter.py."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra import version
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from forge.compose import resolvers
from forge.compose.hydra_adapter import (
    CONF,
    VERSION_BASE,
    CachingConfigRepository,
    ConfigSearchPathImpl,
    DefaultsList,
    Loader,
    ObjectType,
    Override,
    Plugins,
    Repository,
    ResultDefault,
    defaults_list,
    yaml_loader,
)
from forge.compose.tree import node_at
from forge.config import schemas
from forge.config.root import Config
from forge.config.targets import own
from forge.config.targets.target import PATH

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution

PRIMARY = "config"


@dataclass(kw_only=True)
class Composed(Config):
    """A config that was composed from groups and values: what `forge.compose` returns."""

    def validate(self, *, world_size: int | None = None) -> Resolution:
        """Resolve a copy, and return the resolution. Raises ConfigError with every problem."""
        from forge.resolve.resolve import resolve

        return resolve(self, world_size=world_size)


@dataclass(frozen=True)
class Misfit:
    """A file's value without a place in the config: the keys from the root, and the error."""

    config_path: str
    package: str
    keys: tuple[Any, ...]
    cause: OmegaConfBaseException

    @property
    def is_whole_file(self) -> bool:
        return len(self.keys) <= (len(self.package.split(".")) if self.package else 0)


class Library:
    """The YAML groups of forge and of the user's search path, and the schemas behind them."""

    def __init__(self, search_path: Sequence[str] = ()):
        if VERSION_BASE:
            version.setbase(VERSION_BASE["version_base"])
        Plugins.instance()
        schemas.register_schemas(Composed)
        resolvers.register_resolvers()
        path = ConfigSearchPathImpl()
        path.append("main", f"file://{CONF}")
        for entry in search_path:
            path.append("user", entry)
        path.append("schema", "structured://")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.repository = CachingConfigRepository(Repository(path))
        self._loader = Loader(path)

    def groups(self) -> list[str]:
        """Names of the selectable groups, in the order of conf/config.yaml."""
        names = self.repository.get_group_options("", ObjectType.GROUP)
        added = [name for name in names if name not in (*self.places, "schema", "hydra")]
        return [name for name in self.places if name in names] + added

    @cached_property
    def places(self) -> list[str]:
        """The groups with a place in conf/config.yaml; further groups are added with `+`."""
        text = (CONF / f"{PRIMARY}.yaml").read_text(encoding="utf-8")
        content = yaml.load(text, yaml_loader() or yaml.SafeLoader)
        names = [next(iter(entry)) for entry in content["defaults"] if isinstance(entry, dict)]
        return [name.removeprefix("optional ").removeprefix("override ") for name in names]

    def absent(self, config_path: str) -> list[tuple[str, str]]:
        """The (group, option) pairs chosen by a file without existing."""
        files = self.repository.delegate  # a copy of the constructor's argument
        assert isinstance(files, Repository)
        return files.absent.get(config_path, [])

    def options(self, group: str) -> list[str]:
        """Options of a group; of a folder inside as folder/option."""
        options = self.repository.get_group_options(group, ObjectType.CONFIG)
        folders = self.repository.get_group_options(group, ObjectType.GROUP)
        return options + [f"{f}/{name}" for f in folders for name in self.options(f"{group}/{f}")]

    def is_group(self, name: str) -> bool:
        """Whether a selectable group has this name."""
        first = name.partition("/")[0]
        return first not in ("", "schema", "hydra") and self.repository.group_exists(name)

    def primaries(self) -> list[str]:
        """The primary configs: conf/config.yaml and its possible replacements."""
        return self.repository.get_group_options("", ObjectType.CONFIG)

    def defaults(self, overrides: list[Override], primary: str = PRIMARY) -> DefaultsList:
        """The files and schemas of the config, in merge order."""
        return defaults_list(self.repository, overrides, primary)

    def merge(self, defaults: list[ResultDefault]) -> tuple[DictConfig, list[Misfit]]:
        """Merge the defaults to a config; also return the values without a place. Raises
        ConfigCompositionException for a file without a schema.
        """
        tree, misfits = OmegaConf.create(), []
        with flag_override(tree, "no_deepcopy_set_nodes", True):
            for default in defaults:
                loaded = self._loader._load_single_config(default, self.repository).config
                if not isinstance(loaded, DictConfig):
                    path = default.config_path
                    raise ConfigCompositionException(f"In '{path}': it is a list, and has no keys")
                if _is_inner_schema(default) and (node := node_at(tree, default.package or "")):
                    node._set_value("???")  # empty the section: its value has another schema
                _begin_own(tree, loaded)
                try:
                    _merge(tree, loaded)
                except OmegaConfBaseException:
                    content = OmegaConf.to_container(loaded, resolve=False)
                    for keys, cause in _merge_by_part(tree, content):
                        path = default.config_path or ""
                        if cause.object_type in schemas.bases():
                            raise ConfigCompositionException(f"In '{path}': {cause}") from cause
                        misfits.append(Misfit(path, default.package or "", keys, cause))
        self.repository.cache.clear()  # Hydra merges into its cached configs
        OmegaConf.set_struct(tree, True)
        return tree, misfits

    def file_of(self, config_path: str) -> Path | None:
        """The YAML file behind a config path, or None for a schema."""
        for source in self.repository.get_sources():
            if source.scheme() in ("file", "pkg") and source.is_config(config_path):
                is_file = source.scheme() == "file"
                root = Path(source.path if is_file else str(resources.files(source.path)))
                return (root / config_path).with_suffix(".yaml")
        return None


def _merge(tree: DictConfig, loaded: DictConfig) -> None:
    """Merge a file or schema into the tree. Where a section is still missing, its schema becomes
    the section: OmegaConf's merge would first make a section of the declared base class.
    """
    below, part = _below(tree, loaded)
    if len(part) == 1:
        (name,) = part
        section, schema = below._get_node(name), part._get_node(name)
        is_open = isinstance(section, DictConfig) and section._is_missing()
        if is_open and isinstance(schema, DictConfig) and is_dataclass(OmegaConf.get_type(schema)):
            below[name] = schema
            return
    below.merge_with(part)


def _below(tree: DictConfig, loaded: DictConfig) -> tuple[DictConfig, DictConfig]:
    """The section of the tree that a file is about, and the file's values of it: OmegaConf gives
    all values of a merged config their parents again, a tenth of the time of a command.
    """
    while len(loaded) == 1:
        (name,) = loaded
        section, part = tree._get_node(name), loaded._get_node(name)
        if not (_has_values(section) and _has_values(part)):
            break
        assert isinstance(section, DictConfig)
        assert isinstance(part, DictConfig)
        tree, loaded = section, part
    return tree, loaded


def _has_values(node: Any) -> bool:
    return isinstance(node, DictConfig) and not (
        node._is_missing() or node._is_interpolation() or node._is_none()
    )


def _begin_own(tree: DictConfig, loaded: Any) -> None:
    """Give a section begun by a file with a `_target_` and no schema the target's own schema."""
    for group in own.GIVEN:
        node, content = tree._get_node(group), loaded._get_node(group)
        is_open = isinstance(node, DictConfig) and node._is_missing()
        if is_open and isinstance(content, DictConfig) and OmegaConf.get_type(content) is dict:
            values: Any = OmegaConf.to_container(content, resolve=False)
            path_match = PATH.fullmatch(str(values.get(own.TARGET)))
            if path_match and (kind := own.kind_of(group, values)):
                tree[group] = OmegaConf.structured(kind)


def _is_inner_schema(default: ResultDefault) -> bool:
    """Whether a default chooses the schema of a section inside of another section."""
    first, _, group = str(default.config_path).partition("/")
    return first == "schema" and group.partition("/")[0] in schemas.INNER


def _merge_by_part(
    tree: DictConfig, content: Any, above: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], OmegaConfBaseException]]:
    """Merge a dict value by value; yield the keys and the error of values failing to merge."""
    for name, value in content.items():
        keys = (*above, name)
        part = value
        for key in reversed(keys):
            part = {key: part}
        try:
            tree.merge_with(OmegaConf.create(part))
        except OmegaConfBaseException as error:
            is_section = isinstance(value, dict) and isinstance(node_at(tree, keys), DictConfig)
            below = list(_merge_by_part(tree, value, keys)) if is_section else []
            yield from below or [(keys, error)]
