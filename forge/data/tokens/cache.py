"""The directory of prepared data: where it is, one builder at a time, complete entries only."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from forge.data.tokens.shards import BrokenStore

log = logging.getLogger(__name__)
T = TypeVar("T")


def cache_root(cache_dir: str | None) -> Path:
    """data.cache_dir, else $FORGE_CACHE, else ~/.cache/forge."""
    root = cache_dir or os.environ.get("FORGE_CACHE") or "~/.cache/forge"
    return Path(root).expanduser().absolute()


@contextmanager
def explained(root: Path) -> Iterator[None]:
    """Failures of the file system under `root` become a ValueError that names data.cache_dir."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(root):
            raise
        problem = f"cannot write prepared data there ({error.strerror or error})"
        fix = "Make room or set data.cache_dir (or $FORGE_CACHE) to a directory you may write to."
        raise ValueError(f"data.cache_dir = {root}: {problem}. {fix}") from error


@contextmanager
def one_builder(entry: Path) -> Iterator[None]:
    """Hold the lock of a cache entry; other processes wait until this one is done, or dead."""
    from filelock import FileLock, Timeout

    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(entry.with_name(f".{entry.name}.lock"), fallback_to_soft=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        log.info("another process is preparing the same data; waiting for it")
        held = lock.acquire()
    with held:
        yield


@contextmanager
def replacing(entry: Path) -> Iterator[Path]:
    """A fresh directory that replaces `entry` when the block succeeds, and is removed when it
    fails.

    Call it under one_builder(entry): what a killed builder left behind is removed.
    """
    for leftover in entry.parent.glob(f".{entry.name}.tmp-*"):
        shutil.rmtree(leftover)
    fresh = entry.with_name(f".{entry.name}.tmp-new")
    fresh.mkdir()
    try:
        yield fresh
        if entry.exists():
            entry.rename(entry.with_name(f".{entry.name}.tmp-old"))
        fresh.rename(entry)
    finally:
        for leftover in entry.parent.glob(f".{entry.name}.tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


def kept(entry: Path, read: Callable[[], T], make: Callable[[Path], None]) -> T:
    """What is in an entry, made before by `make` into a directory if it is not there or damaged.

    Any number of processes may call this at once: one makes it. read: raises BrokenStore.
    """
    if (found := _intact(entry, read, log.debug)) is not None:
        return found
    with one_builder(entry):
        # The process that held the lock before may have made it.
        if (found := _intact(entry, read, log.warning)) is not None:
            return found
        with replacing(entry) as directory:
            make(directory)
    return read()


def _intact(entry: Path, read: Callable[[], T], on_broken: Callable[..., None]) -> T | None:
    if not entry.exists():
        return None
    try:
        return read()
    except BrokenStore as error:
        on_broken("prepared data in %s is damaged and is made anew: %s", entry, error)
        return None
