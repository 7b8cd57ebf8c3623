"""The directory of prepared data: its location, one builder at a time, complete entries only."""

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
    """Turn failures of the file system under `root` into a ValueError naming data.cache_dir."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(root):
            raise
        problem = f"cannot write prepared data there ({error.strerror or error})"
        hint = "Make room or set data.cache_dir (or $FORGE_CACHE) to a directory you may write to."
        raise ValueError(f"data.cache_dir = {root}: {problem}. {hint}") from error


@contextmanager
def one_builder(entry: Path) -> Iterator[None]:
    """Hold the lock of a cache entry; other processes wait until the holder is done or dead."""
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
def _replacing(entry: Path) -> Iterator[Path]:
    """A fresh directory to replace `entry` when the block succeeds, removed when the block fails.

    Call under one_builder(entry): leftovers of a killed builder are removed.
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


def read_or_make(entry: Path, read: Callable[[], T], make: Callable[[Path], None]) -> T:
    """The content of an entry, built by `make` into a directory where missing or damaged.

    Any number of processes may call this at once: one builds the entry. read: raises BrokenStore.
    """
    if (content := _intact(entry, read, log.debug)) is not None:
        return content
    with one_builder(entry):
        # The last holder of the lock may have built the entry.
        if (content := _intact(entry, read, log.warning)) is not None:
            return content
        with _replacing(entry) as directory:
            make(directory)
    return read()


def _intact(entry: Path, read: Callable[[], T], on_broken: Callable[..., None]) -> T | None:
    if not entry.exists():
        return None
    try:
        return read()
    except BrokenStore as error:
        on_broken("prepared data in %s is damaged and is made again: %s", entry, error)
        return None
