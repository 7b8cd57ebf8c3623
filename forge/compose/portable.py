"""Overrides as a run keeps them: with paths that mean the same wherever they are typed again."""

from __future__ import annotations

import os
from collections.abc import Sequence

from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import Override
from forge.config import schemas
from forge.config.problems import quoted
from forge.config.root import Config
from forge.config.rule import get
from forge.rundir.untrusted import SEARCH, option_of


def portable(overrides: Sequence[str], config_dirs: Sequence[str], config: Config) -> list[str]:
    """The overrides with absolute paths, with --config-dir as an override of the search path, and
    without run.dir.
    """
    paths = set(schemas.keys_with("path"))
    absolute_overrides = [f"{SEARCH}=[{quoted(absolute(d))}]" for d in config_dirs]
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+")
        if name == "run.dir":
            continue
        if name in paths and value not in ("", "null"):
            text = f"{key}={quoted(str(get(config, name)))}"
        elif name == SEARCH:
            text = f"{key}=[{','.join(quoted(absolute(entry)) for entry in searched(text))}]"
        absolute_overrides.append(text)
    return absolute_overrides


def unsaid(overrides: Sequence[str], typed: Sequence[str], config_dirs: Sequence[str]) -> list[str]:
    """The overrides missing among the typed overrides: any typed value of the same option counts;
    of the search path, each directory counts.
    """
    typed_keys = {option_of(text) for text in typed} - {SEARCH}
    folders = {absolute(entry) for text in typed for entry in searched(text)}
    folders |= set(map(absolute, config_dirs))

    def is_typed(text: str) -> bool:
        if option_of(text) == SEARCH:
            return folders.issuperset(searched(text))
        return option_of(text) in typed_keys

    return [text for text in overrides if not is_typed(text)]


def searched(text: str) -> list[str]:
    """The entries of a search path by Hydra's reading, with `pkg\\://` for `pkg://`; none of any
    other override.
    """
    override = read_override(text) if option_of(text) == SEARCH else None
    value = override.value() if isinstance(override, Override) else None
    return [str(entry) for entry in value] if isinstance(value, list) else []


def absolute(source: str) -> str:
    """The absolute path of a directory of the search path; a package stays unchanged."""
    return source if "://" in source else os.path.realpath(os.path.expanduser(source))
