"""Overrides as a run keeps them: with paths that mean the same wherever they are typed again."""

from __future__ import annotations

from collections.abc import Sequence

from forge.config.derive import PATHS
from forge.config.literal import quoted
from forge.config.resolve import get
from forge.config.root import Config
from forge.launch.consent import SEARCH, absolute, searched


def portable(overrides: Sequence[str], config_dirs: Sequence[str], config: Config) -> list[str]:
    """The overrides with absolute paths, and --config-dir as the search path that it stands for;
    without run.dir.
    """
    kept = [f"{SEARCH}=[{quoted(absolute(d))}]" for d in config_dirs]
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+")
        if name == "run.dir":
            continue
        if name in PATHS and value not in ("", "null"):
            text = f"{key}={quoted(str(get(config, name)))}"
        elif name == SEARCH:
            text = f"{key}=[{','.join(quoted(absolute(entry)) for entry in searched(text))}]"
        kept.append(text)
    return kept
