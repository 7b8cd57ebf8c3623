"""The root of a user's own project: the directory with its project file."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

FILE, PYPROJECT = "forge.yaml", "pyproject.toml"
MENTION = re.compile(r"""\btool\b.*\bforge\b|^\s*\[\s*["']?tool["']?\s*\]""", re.MULTILINE)
"""What a pyproject.toml with a table [tool.forge] has, in whichever of TOML's spellings."""


def file_above(start: Path) -> Path | None:
    """The nearest project file above a directory, or in the directory.

    A project file is forge.yaml, or a pyproject.toml with [tool.forge]. The search ends below the
    home directory, the root of the file system, and any directory writable by everybody, for
    example /tmp.
    """
    start = Path(os.path.realpath(start))
    for folder in (start, *start.parents):
        if folder != start and _is_shared(folder):
            return None
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / PYPROJECT).is_file() and forge_table(folder / PYPROJECT) is not None:
            return folder / PYPROJECT
    return None


def forge_table(file: Path) -> Any:
    """The table [tool.forge] of a pyproject.toml; None without the table."""
    try:
        text = file.read_text(encoding="utf-8")
        if MENTION.search(text) is None:
            return None
        import tomllib  # imported late: most commands have no such file above them

        return tomllib.loads(text).get("tool", {}).get("forge")
    except (OSError, ValueError, AttributeError):
        return None  # a file of other tools, and their fault to report


def _is_shared(folder: Path) -> bool:
    ends = (Path(folder.anchor), Path(os.path.realpath(Path.home())))
    return folder in ends or bool(folder.stat().st_mode & stat.S_IWOTH)
