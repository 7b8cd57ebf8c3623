"""Overrides as a run keeps them: with paths that mean the same wherever they are typed again."""

from __future__ import annotations

import os
from collections.abc import Sequence

from forge.config.derive import PATHS
from forge.config.literal import quoted
from forge.config.resolve import get
from forge.config.root import Config

SEARCH, TRUST = "hydra.searchpath", "run.trust"


def portable(overrides: Sequence[str], config_dirs: Sequence[str], config: Config) -> list[str]:
    """The overrides with absolute paths, and --config-dir as the search path that it stands for; without run.dir."""
    kept = [f"{SEARCH}=[{quoted(_absolute(d))}]" for d in config_dirs]
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+")
        if name == "run.dir":
            continue
        if name in PATHS and value not in ("", "null"):
            text = f"{key}={quoted(str(get(config, name)))}"
        elif name == SEARCH:
            text = f"{key}=[{','.join(quoted(_absolute(entry)) for entry in _searched(text))}]"
        kept.append(text)
    return kept


def consent(overrides: Sequence[str]) -> list[str]:
    """Those that let code of others run: run.trust, and packages on the search path. Only who types a command gives them."""
    return [text for text in overrides if _needs_consent(text)]


def without_consent(overrides: Sequence[str]) -> list[str]:
    """The rest."""
    return [text for text in overrides if not _needs_consent(text)]


def _needs_consent(text: str) -> bool:
    key = text.lstrip("+").partition("=")[0]
    return key == TRUST or (key == SEARCH and any("://" in entry for entry in _searched(text)))


def _searched(text: str) -> list[str]:
    """The entries of a search path as Hydra reads them, which takes `pkg\\://` for `pkg://`; none of what composing refuses."""
    from hydra.core.override_parser.types import Override

    from forge.config.grammar import read

    override = read(text)
    value = override.value() if isinstance(override, Override) else None
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _absolute(source: str) -> str:
    return source if "://" in source else os.path.realpath(os.path.expanduser(source))
