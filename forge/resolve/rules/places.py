"""The rule on the place of a run directory: found before anything is made, by looking alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule


@rule("run.place", reads=("run.dir", "run.root"))
def place(config: Config, world: World) -> Iterator[Finding]:
    """The run directory can be made: what is above it is a directory that may be written, and its
    name is not too long.
    """
    key, path = (
        ("run.dir", config.run.dir) if config.run.dir is not None else ("run.root", config.run.root)
    )
    fix = f"{key}={'null' if key == 'run.dir' else 'runs'}, or a place that you may write in"
    why = "its name is empty" if not path else unmakeable(path, itself=key == "run.root")
    if why:
        yield f"{key}={path}", f"the directory {path} cannot be made or written: {why}.", fix


def unmakeable(path: str, *, itself: bool = True) -> str:
    """Why no file can be written below a directory that may not be there yet; empty when one can.

    itself: it is a fault, too, when the path is there and no directory.
    """
    try:
        found = _nearest(Path(path))
        longest = os.pathconf(found, "PC_NAME_MAX") if os.path.isdir(found) else 255
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    if any(len(os.fsencode(part)) > longest for part in Path(path).parts):
        return f"a name in it is longer than {longest} bytes"
    if "\n" in path:
        return "a name in it has a line break"
    if not os.path.isdir(found):
        return f"{found} is no directory" if itself or found != Path(path) else ""
    return "" if os.access(found, os.W_OK | os.X_OK) else f"you may not write in {found}"


def _nearest(path: Path) -> Path:
    """The path, or the nearest one above it that is there. Raises OSError, or ValueError for a NUL."""
    for candidate in (path, *path.parents):
        try:
            os.lstat(candidate)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return candidate
    return Path()
