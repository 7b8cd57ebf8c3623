"""Where a user's own project begins: the directory that holds its project file."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

FILE, PYPROJECT = "forge.yaml", "pyproject.toml"


def file_above(start: Path) -> Path | None:
    """The project file of a directory, or of the nearest above it that has one: forge.yaml, or a
    pyproject.toml with [tool.forge].

    The search ends below the home directory, the root of the file system, and any directory that
    everybody may write in, such as /tmp.
    """
    start = Path(os.path.realpath(start))
    for folder in (start, *start.parents):
        if folder != start and _is_shared(folder):
            return None
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / PYPROJECT).is_file() and table(folder / PYPROJECT) is not None:
            return folder / PYPROJECT
    return None


def table(file: Path) -> Any:
    """What a pyproject.toml has under [tool.forge]; None where it says nothing of forge."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("forge")
    except (OSError, ValueError, AttributeError):
        return None  # it is of other tools, which say what is wrong with it


def _is_shared(folder: Path) -> bool:
    ends = (Path(folder.anchor), Path(os.path.realpath(Path.home())))
    return folder in ends or bool(folder.stat().st_mode & stat.S_IWOTH)
