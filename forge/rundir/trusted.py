"""trusted.json: the projects that this user trusts on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forge.rundir.files import read_object
from forge.rundir.roots import file_above


def registry() -> Path:
    """The file with the projects that are trusted, by their real paths."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".config"
    return base / "forge" / "trusted.json"


def known() -> dict[str, Any]:
    """An entry of each project that was trusted: what it let be imported and read, and its owners;
    none where the file cannot be read.
    """
    try:
        return read_object(registry())
    except (OSError, ValueError):
        return {}


def owners(file: Path) -> list[int]:
    """The users that a project's root and its project file belong to."""
    return [file.parent.stat().st_uid, file.stat().st_uid]


def waits_for_trust(folder: Path) -> bool:
    """Whether a folder is in a project that the user has not trusted, or that has become another
    user's since.
    """
    file = file_above(folder)
    entry = known().get(str(file.parent)) if file else None
    return file is not None and not (
        isinstance(entry, dict) and entry.get("owners") == owners(file)
    )
