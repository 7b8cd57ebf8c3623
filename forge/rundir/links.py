"""Symbolic links that lead out of a run directory: where one is, what forge writes inside would be
written over other files.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath

from forge.config.problems import ConfigError, Problem

OF_WANDB = (
    "wandb/*/logs/debug-core.log"  # made by W&B for each of its runs, and never written through
)
OTHER_DISK = "checkpoints go to another disk by checkpoint.dir=/scratch/mine, for this run with run.allow_change=[checkpoint.dir]"


def check(folder: Path, apart: Collection[str] = ()) -> None:
    """Raise ConfigError with every link below a directory that leads out of it, which may itself be
    reached by one.

    A directory in it that cannot be listed may hide one, and is refused too.
    apart: its folders of directories that are looked at by themselves.
    """
    found = sorted(str(path) for path in _leading_out(folder, apart))
    if found:
        shown = ", ".join(f"{path} -> {os.path.realpath(path)}" for path in found)
        what = f"{'these links lead' if len(found) > 1 else 'this link leads'} out of it, and nothing is written through one: {shown}."
        fix = f"rm {shlex.join(found)}; {OTHER_DISK}"
        raise ConfigError([Problem(key=str(folder), what=what, fix=fix)])


def _leading_out(folder: Path, apart: Collection[str]) -> Iterator[Path]:
    root = os.path.realpath(folder)
    for place, directories, files in os.walk(root, onerror=_unlisted):
        inside = os.path.relpath(place, root)
        for name in (*directories, *files):
            path = Path(place, name)
            if not path.is_symlink() or PurePath(inside, name).match(OF_WANDB):
                continue
            if not Path(os.path.realpath(path)).is_relative_to(root):
                yield folder / path.relative_to(root)
        directories[:] = directories if inside not in apart else []


def _unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # one that was removed meanwhile
        what = (
            f"links in it cannot be looked for, and nothing is written: {error.strerror or error}."
        )
        raise ConfigError(
            [
                Problem(
                    key=str(error.filename),
                    what=what,
                    fix=f"chmod u+rx {shlex.quote(str(error.filename))}",
                )
            ]
        )
