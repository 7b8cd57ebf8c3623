"""Copies on this machine of what an address names: a run, a checkpoint, a folder or a file."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge.config.places import is_remote
from forge.rundir.checkpoints import BEST, META
from forge.rundir.files import read_object, write_json
from forge.rundir.remote.runs import CHECKPOINTS, Listing, fetch_best, fetch_newest, listing_of
from forge.rundir.remote.store import FileVersion, RemoteError, Store
from forge.rundir.saved_config import CONFIG


def copy_root(cache_dir: str | None = None) -> Path:
    """The folder of copies: in data.cache_dir, else $FORGE_CACHE, else ~/.cache/forge."""
    root = cache_dir or os.environ.get("FORGE_CACHE") or "~/.cache/forge"
    return Path(root).expanduser().absolute() / "remote"


def local_copy_of(place: str | os.PathLike[str]) -> Path:
    """A path of this machine: the path itself, or of a copy of what an address names.

    Of a run or a folder of checkpoints the newest checkpoint is copied, of ADDRESS/best the best.
    What is here already is not copied again. Raises RemoteError.
    """
    text = os.fspath(place)
    if not is_remote(text):
        return Path(text)
    address = text.rstrip("/")
    parent, _, name = address.rpartition("/")
    is_best = name == BEST
    store = Store(parent if is_best else address)
    target = copy_root() / hashlib.sha256(store.address.encode()).hexdigest()[:16]
    target /= store.address.rpartition("/")[2]
    with _one_at_a_time(target):
        return _copied(store, target, is_best)


def _copied(store: Store, target: Path, is_best: bool) -> Path:
    files = store.files()
    if META in files:
        return _one_checkpoint(store, target)
    steps = {name.split("/")[0] for name in files if name.startswith("step_")}
    if CONFIG in files or steps:
        return _run(store, target, files, is_best, below="" if steps else CHECKPOINTS)
    if not files:
        return _one_file(store, target)
    download_changed(store, target, {k: v for k, v in files.items() if "/" not in k})
    return target


def _one_checkpoint(store: Store, target: Path) -> Path:
    parent, _, name = store.address.rpartition("/")
    above = Store(parent)
    with listing_of_one(above, name) as listing:
        if not fetch_newest(listing, target.parent):
            raise _nothing(store)
    return target


@contextmanager
def listing_of_one(store: Store, step: str) -> Iterator[Listing]:
    """The listing of one checkpoint in a folder of them."""
    with listing_of(store, "") as listing:
        listing.saved = [saved for saved in listing.saved if saved.path.name == step]
        yield listing


def _run(
    store: Store, target: Path, files: dict[str, FileVersion], is_best: bool, below: str
) -> Path:
    """Copy a run, or a folder of checkpoints, with one checkpoint."""
    small = {k: v for k, v in files.items() if not k.startswith(f"{CHECKPOINTS}/")}
    folder = target / below if below else target
    if below:
        download_changed(store, target, small, growing=True)
    with listing_of(store, below) as listing:
        there = {saved.path.name for saved in listing.saved}
        for saved in folder.glob("step_*"):
            if saved.name not in there:
                shutil.rmtree(saved, ignore_errors=True)
        saved = fetch_best(listing, folder) if is_best else fetch_newest(listing, folder)
    if saved is None:
        word = "checkpoint that was evaluated" if is_best else "complete checkpoint"
        hint = "Give a step_N, or a run that has one"
        raise RemoteError(store.address, f"there is no {word}", hint)
    return saved.path if is_best else target


def _one_file(store: Store, target: Path) -> Path:
    """Copy a single file, such as a .safetensors file."""
    parent, _, name = store.address.rpartition("/")
    stated = Store(parent).file(name)
    if stated is None:
        raise _nothing(store)
    download_changed(Store(parent), target.parent, {name: stated})
    return target


def _nothing(store: Store) -> RemoteError:
    hint = "Correct it; a run is copied there by checkpoint.remote"
    return RemoteError(store.address, "there is nothing at this address", hint)


@functools.cache  # the points of a sweep ask for the same address
def absence(address: str) -> tuple[str, str]:
    """(the reason against an address that is to be read, what to do); two empty texts for none."""
    try:
        text = address.rstrip("/").removesuffix(f"/{BEST}")
        store = Store(text)
        parent, _, name = text.rpartition("/")
        if not store.names() and Store(parent).file(name) is None:
            raise _nothing(store)
    except RemoteError as error:
        return f"{error.why}.", error.hint
    return "", ""


def local_folder(address: str, cache_dir: str | None, pattern: str | None = None) -> Path:
    """A copy of a folder of files in a store, without its subfolders' other files.

    pattern: a glob of the names to copy, beside .json and .idx files; None = all. Files that are
    here unchanged are not copied again. Raises RemoteError.
    """
    store = Store(address)
    name = store.address.rpartition("/")[2]
    target = copy_root(cache_dir) / hashlib.sha256(store.address.encode()).hexdigest()[:16] / name
    with _one_at_a_time(target):
        files = store.files()
        if not files:
            return _one_file(store, target)
        chosen = {
            name: stated
            for name, stated in files.items()
            if pattern is None
            or fnmatch.fnmatch(name, pattern)
            or name.endswith((".json", ".idx"))
            or "tokenizer/" in name
        }
        download_changed(store, target, chosen)
    return target


def download_changed(
    store: Store, target: Path, files: dict[str, FileVersion], *, growing: bool = False
) -> None:
    """Download the files that are absent here or have changed; each is complete or absent.

    growing: of a run that trains, whose files may change while they are read. RemoteError: fewer
    bytes have come than the store states.
    """
    notes = target.with_name(f".{target.name}.json")
    try:
        noted = {name: FileVersion(*stated) for name, stated in read_object(notes).items()}
    except (OSError, ValueError, TypeError):
        noted = {}
    missing = [
        name
        for name, stated in files.items()
        if noted.get(name) != stated or not (target / name).is_file()
    ]
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        store.download(missing, scratch)
        for name in missing:
            size = (scratch / name).stat().st_size
            if size != files[name].size and not growing:
                why = f"{name} came with {size} bytes of {files[name].size}"
                raise RemoteError(store.address, why, "Copy it there again, or try again")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / name, target / name)
        write_json(notes, {**noted, **files})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _one_at_a_time(target: Path) -> Iterator[None]:
    """Hold the lock of a copy: other processes wait, and find what they need."""
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock"), fallback_to_soft=False):
        yield
