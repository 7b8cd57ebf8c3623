"""The one place that touches Hydra's composition engine (hydra-core <1.4)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import DefaultsList, create_defaults_list
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from forge.config import schemas, spelling
from forge.config.paths import CONF

PRIMARY = "config"


class Repository(ConfigRepository):
    """Files as Hydra reads them, with what they say of Hydra's sweeper and launcher under forge's names."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        found = super().load_config(config_path)
        if found is None:
            return None
        for default in found.defaults_list or []:
            if isinstance(default, GroupDefault) and (group := spelling.GROUPS.get((default.group or "").removeprefix("/"))):
                default.group = f"/{group}"
                default.value = spelling.option(group, default.value) if isinstance(default.value, str) else default.value
        if isinstance(found.config, DictConfig) and "hydra" in found.config:
            content: Any = OmegaConf.to_container(found.config, resolve=False)
            flags = found.config._metadata.flags
            found.config = OmegaConf.create(spelling.of_file(content))
            found.config._metadata.flags = flags
        return found


class Library:
    """The YAML groups of forge and of the user's search path, and the schemas behind them."""

    def __init__(self, search_path: Sequence[str] = ()):
        version.setbase("1.3")
        Plugins.instance()
        schemas.register()
        path = ConfigSearchPathImpl()
        path.append("main", f"file://{CONF}")
        for entry in search_path:
            path.append("user", entry)
        path.append("schema", "structured://")
        self.search_path = path
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.repository = CachingConfigRepository(Repository(path))
        self._loader = ConfigLoaderImpl(path)

    def missing_sources(self) -> list[str]:
        """Entries of the search path that do not exist."""
        return [source.path for source in self.repository.get_sources() if not source.available()]

    def groups(self) -> list[str]:
        """Names of the groups a user chooses from, in the order of conf/config.yaml."""
        found = self.repository.get_group_options("", ObjectType.GROUP)
        order = self.places
        known = [name for name in order if name in found]
        return known + [name for name in found if name not in order and name not in ("schema", "hydra")]

    @cached_property
    def places(self) -> list[str]:
        """The groups that conf/config.yaml has a place for; another of the user's own is added with `+`."""
        defaults = yaml.safe_load((CONF / f"{PRIMARY}.yaml").read_text(encoding="utf-8"))["defaults"]
        entries = [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]
        return [name.removeprefix("optional ").removeprefix("override ") for name in entries]

    def options(self, group: str) -> list[str]:
        """Options of one group."""
        return self.repository.get_group_options(group, ObjectType.CONFIG)

    def is_group(self, name: str) -> bool:
        """Whether there is a group of this name that a user may choose from."""
        return name.partition("/")[0] not in ("", "schema", "hydra") and self.repository.group_exists(name)

    def defaults(self, overrides: list[Override]) -> DefaultsList:
        """The files and schemas that make up the config, in merge order."""
        return create_defaults_list(
            repo=self.repository, config_name=PRIMARY, overrides_list=overrides, prepend_hydra=False, skip_missing=False
        )

    def merge(self, defaults: list[ResultDefault]) -> DictConfig:
        """The config that these files and schemas compose to, in struct mode."""
        try:
            tree = self._loader._compose_config_from_defaults_list(defaults=defaults, repo=self.repository)
        finally:
            self.repository.cache.clear()  # Hydra merges into what it cached; another composition must not see it
        OmegaConf.set_struct(tree, True)
        return tree

    def file_of(self, config_path: str) -> Path | None:
        """The YAML file behind a config path, or None for a schema."""
        for source in self.repository.get_sources():
            if source.scheme() in ("file", "pkg") and source.is_config(config_path):
                root = Path(source.path) if source.scheme() == "file" else _folder_of(source.path)
                return (root / config_path).with_suffix(".yaml")
        return None


def _folder_of(package: str) -> Path:
    return Path(str(resources.files(package)))


def parse(text: str) -> Override:
    """One override as Hydra reads it. Raises hydra.errors.OverrideParseException."""
    return OverridesParser.create().parse_override(text)
