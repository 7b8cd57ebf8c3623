"""trusted.json: the projects trusted by this user on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forge.rundir.files import read_object
from forge.rundir.roots import file_above


def registry() -> Path:
    """The file with the trusted projects, by their real paths."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "forge" / "trusted.json"


def known() -> dict[str, Any]:
    """An entry of each trusted project: the allowed imports and reads, and the owners.

    Empty where the file is unreadable.
    """
    try:
        return read_object(registry())
    except (OSError, ValueError):
        return {}


def owners(file: Path) -> list[int]:
    """The users who own a project's root and project file."""
    return [file.parent.stat().st_uid, file.stat().st_uid]


def waits_for_trust(folder: Path) -> bool:
    """Whether a folder is in a project not trusted by the user, or with a new owner since."""
    file = file_above(folder)
    entry = known().get(str(file.parent)) if file else None
    return file is not None and not (
        isinstance(entry, dict) and entry.get("owners") == owners(file)
    )
