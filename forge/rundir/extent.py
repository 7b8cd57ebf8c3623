"""How large a run directory is, and when the run last wrote in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forge.rundir.annotations import ANNOTATIONS
from forge.rundir.lock import LOCK

NOT_BY_THE_RUN = {ANNOTATIONS, LOCK, "report"}
"""Names written by people's commands, and by a second start that is refused."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """size: bytes of all files, links not followed. written: seconds since 1970."""

    size: int
    written: float


def extent(run_dir: Path) -> Extent:
    """Measure a run directory; a file removed meanwhile, for example an old checkpoint, does not
    count.
    """
    size, written = 0, 0.0
    for top, status in _files(os.fspath(run_dir)):
        size += status.st_size
        if top not in NOT_BY_THE_RUN:
            written = max(written, status.st_mtime)
    return Extent(size=size, written=written)


def _files(folder: str, top: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Each file with its top-level name inside the run directory."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, top or entry.name)
            continue
        try:
            yield top or entry.name, entry.stat(follow_symlinks=False)
        except OSError:
            continue
