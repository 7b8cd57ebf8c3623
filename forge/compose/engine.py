"""The one place that touches Hydra's composition engine (hydra-core <1.5)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import omegaconf._utils
import yaml
from hydra import version
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from forge.compose import resolvers
from forge.compose.tree import node_at
from forge.config import hydra_names, schemas
from forge.config.root import Config
from forge.config.targets import own
from forge.config.targets.target import PATH

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution

CONF = (Path(__file__).parents[1] / "conf").resolve()
"""The folder of forge's YAML groups, in a checkout as in an installed package."""
PRIMARY = "config"
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""What Hydra 1.3 is told to behave as; later ones behave so, and warn of it."""


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


@functools.cache
def _loader() -> type | None:
    """OmegaConf 2.3's loader of YAML over libyaml, in a fifth of the time; None without libyaml,
    and from OmegaConf 2.4 on, itself a user of libyaml.
    """
    pure = getattr(omegaconf._utils, "get_yaml_loader", None)
    if pure is None or not yaml.__with_libyaml__:
        return None
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    def begin(self: Any, stream: str) -> None:
        CParser.__init__(self, stream)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    return type("Loader", (CParser, pure()), {"__init__": begin})


class OwnFiles(FileConfigSource):
    """forge's folder of groups. Users' folders are read by Hydra, for errors with a line number."""

    def load_config(self, config_path: str) -> ConfigResult:
        if (loader := _loader()) is None:
            return super().load_config(config_path)
        text = (CONF / self._normalize_file_name(config_path)).read_text(encoding="utf-8")
        return ConfigResult(
            config=OmegaConf.create(yaml.load(text, loader) or {}),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header=self._get_header_dict(text[:512]),
        )


class Choices(Overrides):
    """Overrides of Hydra without needless interpolation maps. For every file Hydra 1.3 makes an
    OmegaConf of all choices so far, for interpolations in the defaults list: a tenth of the time of
    a command. This class makes the map of no choices where nothing interpolates.
    """

    def __init__(self, repo: CachingConfigRepository, overrides_list: list[Override]):
        assert isinstance(repo.delegate, Repository)
        self.repository, self.is_asked = repo.delegate, False
        super().__init__(repo=repo, overrides_list=overrides_list)
        self.interpolates = any("${" in (override.input_line or "") for override in overrides_list)

    @property
    def known_choices(self) -> dict[str, str | None]:
        shown = self.is_asked or self.interpolates or self.repository.interpolates
        return self.choices if shown else {}

    @known_choices.setter
    def known_choices(self, choices: dict[str, str | None]) -> None:
        self.choices = choices

    def set_known_choice(self, default: InputDefault) -> None:
        self.is_asked = True
        super().set_known_choice(default)
        self.is_asked = False


class Repository(ConfigRepository):
    """Hydra's reader of files, with Hydra's names translated to forge's. `absent` has, by file, the
    chosen (group, option) pairs without a file, left out of the read result.
    """

    def __init__(self, config_search_path: ConfigSearchPathImpl):
        super().__init__(config_search_path)
        self.absent: dict[str, list[tuple[str, str]]] = {}
        self.interpolates = False  # whether a defaults list does

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        index = next(
            position for position, source in enumerate(self.sources) if source.path == str(CONF)
        )
        self.sources[index] = OwnFiles(self.sources[index].provider, self.sources[index].path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Repository:
        return self  # not shared, and a copy by Hydra's cache would copy all schemas too

    def load_config(self, config_path: str) -> ConfigResult | None:
        result = super().load_config(config_path)
        if result is None:
            return None
        existing, absent = [], []
        for default in result.defaults_list or []:
            self.interpolates |= any("${" in str(part) for part in vars(default).values())
            if isinstance(default, GroupDefault) and isinstance(default.value, str):
                group = (default.group or "").removeprefix("/")
                if group in hydra_names.GROUPS:
                    group = hydra_names.GROUPS[group]
                    default.group = f"/{group}"
                    default.value = hydra_names.translate_option(group, default.value)
                if self._is_absent(default, group):
                    absent.append((group, default.value))
                    continue
            existing.append(default)
        if absent:
            self.absent[config_path], result.defaults_list = absent, existing
        if isinstance(result.config, DictConfig):
            content: Any = OmegaConf.to_container(result.config, resolve=False)
            ours = hydra_names.translate_file(content) if isinstance(content, dict) else content
            if ours != content:
                result.config = OmegaConf.create(ours, flags=result.config._metadata.flags)
        return result

    def _is_absent(self, default: GroupDefault, group: str) -> bool:
        name = str(default.value)
        if not default.override or default.optional or "${" in name:
            return False
        return self.group_exists(group) and not self.config_exists(f"{group}/{name}")


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
        self._loader = ConfigLoaderImpl(path)

    def groups(self) -> list[str]:
        """Names of the selectable groups, in the order of conf/config.yaml."""
        names = self.repository.get_group_options("", ObjectType.GROUP)
        added = [name for name in names if name not in (*self.places, "schema", "hydra")]
        return [name for name in self.places if name in names] + added

    @cached_property
    def places(self) -> list[str]:
        """The groups with a place in conf/config.yaml; further groups are added with `+`."""
        text = (CONF / f"{PRIMARY}.yaml").read_text(encoding="utf-8")
        content = yaml.load(text, _loader() or yaml.SafeLoader)
        names = [next(iter(entry)) for entry in content["defaults"] if isinstance(entry, dict)]
        return [name.removeprefix("optional ").removeprefix("override ") for name in names]

    def absent(self, config_path: str) -> list[tuple[str, str]]:
        """The (group, option) pairs chosen by a file without existing."""
        files = self.repository.delegate  # a copy of the constructor's argument
        assert isinstance(files, Repository)
        return files.absent.get(config_path, [])

    def options(self, group: str) -> list[str]:
        """Options of a group."""
        return self.repository.get_group_options(group, ObjectType.CONFIG)

    def is_group(self, name: str) -> bool:
        """Whether a selectable group has this name."""
        first = name.partition("/")[0]
        return first not in ("", "schema", "hydra") and self.repository.group_exists(name)

    def primaries(self) -> list[str]:
        """The primary configs: conf/config.yaml and its possible replacements."""
        return self.repository.get_group_options("", ObjectType.CONFIG)

    def defaults(self, overrides: list[Override], primary: str = PRIMARY) -> DefaultsList:
        """The files and schemas of the config, in merge order."""
        if not hasattr(defaults_list, "_create_interpolation_map"):  # from Hydra 1.4 on
            return defaults_list.create_defaults_list(
                repo=self.repository,
                config_name=primary,
                overrides_list=overrides,
                prepend_hydra=False,
                skip_missing=False,
            )
        chosen = Choices(self.repository, overrides)
        results, tree = defaults_list._create_defaults_list(
            self.repository, primary, chosen, prepend_hydra=False, skip_missing=False
        )
        chosen.ensure_overrides_used()
        chosen.ensure_deletions_used()
        chosen.is_asked = True
        return DefaultsList(
            defaults=results,
            defaults_tree=tree,
            config_overrides=chosen.config_overrides,
            overrides=chosen,
        )

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
                    tree.merge_with(loaded)
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


def parse_override(text: str) -> Override:
    """Parse an override with Hydra's parser. Raises hydra.errors.OverrideParseException."""
    return OverridesParser.create().parse_override(text)
