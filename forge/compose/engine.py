"""The one place that touches Hydra's composition engine (hydra-core <1.4)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from forge.compose.composed import Composed
from forge.compose.paths import CONF
from forge.config import schemas, spelling

PRIMARY = "config"


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A value of a file that has no place in the config: its file, the section that the file is of,
    its keys from the root, and why.
    """

    config_path: str
    package: str
    keys: tuple[Any, ...]
    cause: OmegaConfBaseException

    @property
    def in_file(self) -> tuple[Any, ...]:
        """Its keys in the file; none where the whole of it has no place."""
        return self.keys[len(self.package.split(".")) if self.package else 0 :]


class Repository(ConfigRepository):
    """Files as Hydra reads them, with what they say of Hydra's sweeper and launcher under forge's
    names, and without misfits.
    """

    misfits: Sequence[Misfit] = ()

    def __init__(self, config_search_path: ConfigSearchPathImpl):
        super().__init__(config_search_path)
        self.absent: dict[str, list[tuple[str, str]]] = {}
        """By file, the (group, option) that its defaults list overrides with and that are not
        there; the file is read without them.
        """

    def load_config(self, config_path: str) -> ConfigResult | None:
        found = super().load_config(config_path)
        if found is None:
            return None
        for default in found.defaults_list or []:
            if isinstance(default, GroupDefault) and (
                group := spelling.GROUPS.get((default.group or "").removeprefix("/"))
            ):
                default.group = f"/{group}"
                default.value = (
                    spelling.option(group, default.value)
                    if isinstance(default.value, str)
                    else default.value
                )
        absent = {
            id(default): choice
            for default in found.defaults_list or []
            if (choice := self._absent(default))
        }
        if absent:
            self.absent[config_path] = list(absent.values())
            found.defaults_list = [
                default for default in found.defaults_list or [] if id(default) not in absent
            ]
        misfits = [misfit for misfit in self.misfits if misfit.config_path == config_path]
        if isinstance(found.config, DictConfig) and ("hydra" in found.config or misfits):
            content: Any = OmegaConf.to_container(found.config, resolve=False)
            flags = found.config._metadata.flags
            found.config = OmegaConf.create(_without(spelling.of_file(content), misfits))
            found.config._metadata.flags = flags
        return found

    def _absent(self, default: Any) -> tuple[str, str] | None:
        if (
            not isinstance(default, GroupDefault)
            or not default.override
            or default.optional
            or not isinstance(default.value, str)
        ):
            return None
        group = str(default.group).removeprefix("/")
        known = (
            "${" in default.value
            or not self.group_exists(group)
            or self.config_exists(f"{group}/{default.value}")
        )
        return None if known else (group, default.value)


class Library:
    """The YAML groups of forge and of the user's search path, and the schemas behind them."""

    def __init__(self, search_path: Sequence[str] = ()):
        version.setbase("1.3")
        Plugins.instance()
        schemas.register(Composed)
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
        return known + [
            name for name in found if name not in order and name not in ("schema", "hydra")
        ]

    @cached_property
    def places(self) -> list[str]:
        """The groups that conf/config.yaml has a place for; another of the user's own is added with
        `+`.
        """
        defaults = yaml.safe_load((CONF / f"{PRIMARY}.yaml").read_text(encoding="utf-8"))[
            "defaults"
        ]
        entries = [next(iter(entry)) for entry in defaults if isinstance(entry, dict)]
        return [name.removeprefix("optional ").removeprefix("override ") for name in entries]

    def absent(self, config_path: str) -> list[tuple[str, str]]:
        """The (group, option) that a file asks for and that are not there; it was read without
        them.
        """
        files = self.repository.delegate
        assert isinstance(files, Repository)
        return files.absent.get(config_path, [])

    def options(self, group: str) -> list[str]:
        """Options of one group."""
        return self.repository.get_group_options(group, ObjectType.CONFIG)

    def is_group(self, name: str) -> bool:
        """Whether there is a group of this name that a user may choose from."""
        return name.partition("/")[0] not in (
            "",
            "schema",
            "hydra",
        ) and self.repository.group_exists(name)

    def defaults(self, overrides: list[Override]) -> DefaultsList:
        """The files and schemas that make up the config, in merge order."""
        return create_defaults_list(
            repo=self.repository,
            config_name=PRIMARY,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )

    def merge(self, defaults: list[ResultDefault]) -> tuple[DictConfig, list[Misfit]]:
        """The config that these files and schemas compose to, in struct mode, without what has no
        place in it, and what that is.
        """
        misfits: list[Misfit] = []
        try:
            tree = self._merged(defaults)
        except ConfigCompositionException as error:
            misfits = (
                self._misfits(defaults)
                if isinstance(error.__context__, OmegaConfBaseException)
                else []
            )
            if not misfits:
                raise
            files = self.repository.delegate
            assert isinstance(files, Repository)
            files.misfits = misfits
            try:
                astray = {misfit.config_path for misfit in misfits if not misfit.in_file}
                tree = self._merged(
                    [default for default in defaults if default.config_path not in astray]
                )
            finally:
                files.misfits = ()
        OmegaConf.set_struct(tree, True)
        return tree, misfits

    def _merged(self, defaults: list[ResultDefault]) -> DictConfig:
        try:
            return self._loader._compose_config_from_defaults_list(
                defaults=defaults, repo=self.repository
            )
        finally:
            # Hydra merges into what it cached; another composition must not see it
            self.repository.cache.clear()

    def _misfits(self, defaults: list[ResultDefault]) -> list[Misfit]:
        """Every value of these files that does not merge; none where a file does not say which
        schema its values are of.
        """
        tree, found = OmegaConf.create(), []
        with flag_override(tree, "no_deepcopy_set_nodes", True):
            for default in defaults:
                loaded = self._loader._load_single_config(default, self.repository).config
                try:
                    tree.merge_with(loaded)
                except OmegaConfBaseException:
                    content = OmegaConf.to_container(loaded, resolve=False)
                    of_file = dict(_refused(tree, content))
                    if any(cause.object_type in schemas.bases() for cause in of_file.values()):
                        return []
                    path, package = default.config_path or "", default.package or ""
                    found += [
                        Misfit(config_path=path, package=package, keys=keys, cause=cause)
                        for keys, cause in of_file.items()
                    ]
        self.repository.cache.clear()
        return found

    def file_of(self, config_path: str) -> Path | None:
        """The YAML file behind a config path, or None for a schema."""
        for source in self.repository.get_sources():
            if source.scheme() in ("file", "pkg") and source.is_config(config_path):
                root = Path(source.path) if source.scheme() == "file" else _folder_of(source.path)
                return (root / config_path).with_suffix(".yaml")
        return None


def _refused(
    tree: DictConfig, content: Any, above: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], OmegaConfBaseException]]:
    """Merge a dict part by part, and give the keys of each part that cannot be merged, with the
    error.
    """
    for name, value in content.items():
        keys = (*above, name)
        part = value
        for key in reversed(keys):
            part = {key: part}
        try:
            tree.merge_with(OmegaConf.create(part))
        except OmegaConfBaseException as error:
            inner = (
                list(_refused(tree, value, keys))
                if isinstance(value, dict) and _exists(tree, keys)
                else []
            )
            yield from inner or [(keys, error)]


def _exists(tree: DictConfig, keys: Sequence[Any]) -> bool:
    """Whether there is a dict or a section at these keys."""
    node: Any = tree
    for key in keys:
        node = (
            node._get_node(key)
            if isinstance(node, DictConfig) and isinstance(key, str) and key in node
            else None
        )
    return isinstance(node, DictConfig)


def _without(content: dict[str, Any], misfits: Sequence[Misfit]) -> dict[str, Any]:
    """What a file sets, without what has no place."""
    for misfit in misfits:
        *above, last = misfit.in_file
        del functools.reduce(lambda inner, key: inner[key], above, content)[last]
    return content


def _folder_of(package: str) -> Path:
    return Path(str(resources.files(package)))


def parse(text: str) -> Override:
    """One override as Hydra reads it. Raises hydra.errors.OverrideParseException."""
    return OverridesParser.create().parse_override(text)
