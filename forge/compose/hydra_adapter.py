"""The one file that imports Hydra's and OmegaConf's internals (hydra-core <1.5, omegaconf <2.5):
files of groups, choices among them and the grammar of overrides, by subclasses and without patches.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import hydra
import omegaconf._utils
import yaml
from hydra._internal import defaults_list as hydra_defaults
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    Glob,
    IntervalSweep,
    Override,
    OverrideType,
    RangeSweep,
)
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from forge.config import hydra_names

__all__ = [
    "CONF",
    "VERSION_BASE",
    "CachingConfigRepository",
    "ConfigSearchPathImpl",
    "DefaultsList",
    "Glob",
    "GroupDefault",
    "IntervalSweep",
    "Loader",
    "ObjectType",
    "Override",
    "OverrideType",
    "Plugins",
    "RangeSweep",
    "Repository",
    "ResultDefault",
    "defaults_list",
    "parse_override",
    "to_yaml",
    "yaml_loader",
]

CONF = (Path(__file__).parents[1] / "conf").resolve()
"""The folder of forge's YAML groups, in a checkout as in an installed package."""
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
"""What Hydra 1.3 is told to behave as; later ones behave so, and warn of it."""


@functools.cache
def yaml_loader() -> type | None:
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


def to_yaml(config: Any) -> str:
    """The text of OmegaConf.to_yaml, written by libyaml if PyYAML has it."""
    if yaml_loader() is None:
        return OmegaConf.to_yaml(config)
    dumper: Any = type("Dumper", (yaml.CDumper,), {})
    dumper.add_representer(str, omegaconf._utils.OmegaConfDumper.str_representer)
    content = OmegaConf.to_container(config, enum_to_str=True)
    text = yaml.dump(content, Dumper=dumper, allow_unicode=True, sort_keys=False)
    return OmegaConf.to_yaml(config) if "\\U" in text else text  # libyaml escapes emoji


class OwnFiles(FileConfigSource):
    """forge's folder of groups. Users' folders are read by Hydra, for errors with a line number."""

    def load_config(self, config_path: str) -> ConfigResult:
        if (loader := yaml_loader()) is None:
            return super().load_config(config_path)
        text = (CONF / self._normalize_file_name(config_path)).read_text(encoding="utf-8")
        return ConfigResult(
            config=OmegaConf.create(yaml.load(text, loader) or {}),
            path=f"{self.scheme()}://{self.path}",
            provider=self.provider,
            header=self._get_header_dict(text[:512]),
        )


class Loader(ConfigLoaderImpl):
    """Hydra's loader, without a copy of each file where its package puts it in the config."""

    @staticmethod
    def _embed_result_config(ret: ConfigResult, package_override: str | None) -> ConfigResult:
        package = package_override if package_override is not None else ret.header["package"]
        if not package:
            return ret
        tree, config = OmegaConf.create(flags={"no_deepcopy_set_nodes": True}), ret.config
        # A file chosen twice comes from Hydra's cache, with a place in the config already.
        is_placed = config._get_parent() is not None
        OmegaConf.update(tree, package, copy.deepcopy(config) if is_placed else config, merge=False)
        result = copy.copy(ret)
        result.config = tree
        return result


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


def defaults_list(
    repository: CachingConfigRepository, overrides: list[Override], primary: str
) -> DefaultsList:
    """The files and schemas of a primary config under overrides, in merge order."""
    if not hasattr(hydra_defaults, "_create_interpolation_map"):  # from Hydra 1.4 on
        return hydra_defaults.create_defaults_list(
            repo=repository,
            config_name=primary,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )
    chosen = Choices(repository, overrides)
    results, tree = hydra_defaults._create_defaults_list(
        repository, primary, chosen, prepend_hydra=False, skip_missing=False
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


def parse_override(text: str) -> Override:
    """Parse an override with Hydra's parser. Raises hydra.errors.OverrideParseException."""
    return OverridesParser.create().parse_override(text)
