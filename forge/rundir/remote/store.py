"""A folder of a remote store, such as s3://bucket/runs, through fsspec."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forge.config.places import ADDRESS, missing_library

ATTEMPTS, PAUSE = 3, 1.0  # seconds before the second attempt, twice as many before the third
AT_ONCE = 4  # files
PROBE = ".forge_probe"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws/credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login",
    "hf": "HF_TOKEN, or hf auth login",
}
STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "mtime", "LastModified", "created")
"""Keys of fsspec's listings, of several stores, with a value that changes with a file."""
T = TypeVar("T")


class FileVersion(NamedTuple):
    """Bytes of a file, and a text that changes with its content."""

    size: int
    stamp: str


def _stated(entry: Mapping[str, Any]) -> FileVersion:
    known = (entry.get(key) for key in STAMPS)
    return FileVersion(int(entry["size"] or 0), str(next((v for v in known if v is not None), "")))


class RemoteError(ValueError):
    """A remote store that cannot be used: the address, the reason, and what to do.

    lasting: another attempt would fail likewise.
    """

    def __init__(self, address: str, why: str, hint: str, *, lasting: bool = True) -> None:
        super().__init__(f"{address}: {why}. {hint}".rstrip())
        self.address, self.why, self.hint, self.lasting = address, why, hint, lasting

    def __reduce__(self) -> tuple[Any, ...]:  # the main rank's fault goes to all ranks
        return RemoteError, (self.address, self.why, self.hint)


class Store:
    """Files below an address, by name relative to the address.

    An object store has no rename: a file is there once all its bytes are, and what consists of
    several files is complete once a last file is there. Raises RemoteError throughout.
    """

    def __init__(self, address: str, *, attempts: int = ATTEMPTS) -> None:
        self.address, self.attempts = address.rstrip("/"), attempts
        if library := missing_library(address):
            hint = f"Install it: pip install {library}"
            raise RemoteError(address, f"it needs the library {library}, which is absent", hint)
        self._fs, self._root = self._call(partial(self._open, self.address))

    def _open(self, address: str) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        # An instance of its own: fsspec shares instances, and with them stale listings.
        fs, root = url_to_fs(address, skip_instance_cache=True, use_listings_cache=False)
        return fs, root.rstrip("/")

    def below(self, name: str) -> Store:
        """The folder of a name in this folder."""
        folder = object.__new__(Store)
        folder.address, folder._fs = f"{self.address}/{name}", self._fs
        folder.attempts = self.attempts
        folder._root = f"{self._root}/{name}"
        return folder

    def files(self, folder: str = "") -> dict[str, FileVersion]:
        """Each file below a folder, by name; empty without the folder."""
        root = self._path(folder)

        def find() -> dict[str, Any]:
            self._fs.invalidate_cache()
            return self._fs.find(root, detail=True)

        start = len(self._root) + 1
        return {path[start:]: _stated(entry) for path, entry in self._call(find).items()}

    def file(self, name: str) -> FileVersion | None:
        """What the store states of one file; None without the file."""

        def info() -> FileVersion | None:
            self._fs.invalidate_cache()
            try:
                entry = self._fs.info(self._path(name))
            except FileNotFoundError:
                return None
            return _stated(entry) if entry["type"] == "file" else None

        return self._call(info)

    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders in a folder."""
        root = self._path(folder)

        def entries() -> list[str]:
            self._fs.invalidate_cache()
            try:
                return self._fs.ls(root, detail=False)
            except FileNotFoundError:
                return self._bucket_exists()

        return sorted({path.rstrip("/").rpartition("/")[2] for path in self._call(entries)} - {""})

    def _bucket_exists(self) -> list[str]:
        """No entries, of a folder that is absent in a bucket that is there."""
        bucket = self._root.partition("/")[0]
        if bucket and ADDRESS.match(self.address) and not self.address.startswith("file:"):
            self._fs.ls(bucket, detail=False)
        return []

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None without the file."""

        def content() -> bytes | None:
            try:
                return self._fs.cat_file(self._path(name))
            except FileNotFoundError:
                return None

        return self._call(content)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""

        def pipe() -> None:
            self._make_folder(name)
            self._fs.pipe_file(self._path(name), content)

        self._call(pipe)

    def upload(self, files: dict[str, Path]) -> None:
        """Copy files into the store, by name, several at once.

        FileNotFoundError: a file of this machine was removed meanwhile.
        """

        def put(name: str) -> None:
            self._make_folder(name)
            with files[name].open("rb"):  # a file that is gone is no fault of the store
                pass
            self._fs.put_file(str(files[name]), self._path(name))

        self._each(put, files, files.__getitem__)

    def download(self, names: Iterable[str], folder: Path) -> None:
        """Copy files of the store into a folder of this machine, several at once."""

        def get(name: str) -> None:
            if ".." in name.split("/") or name.startswith("/"):
                why = f"it has a file {name!r}, which leads out of its folder"
                raise RemoteError(self.address, why, "Take another")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self._path(name), str(target))

        self._each(get, names, lambda name: None)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in this order."""

        def rm(name: str) -> None:
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                return

        for name in names:
            self._call(partial(rm, name))

    def probe(self) -> None:
        """Write a small file, and remove it again."""
        name = f"{PROBE}_{os.getpid()}"
        self.write(name, b"forge\n")
        if self.read(name) != b"forge\n":
            why = "a file that was just written cannot be read again"
            raise RemoteError(self.address, why, "Give a store where a written file is there")
        self.remove([name])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _make_folder(self, name: str) -> None:
        """Make the folder of a file, where the store has folders."""
        if "local" in type(self._fs).__name__.lower():
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _each(
        self, work: Callable[[str], None], names: Iterable[str], local: Callable[[str], Path | None]
    ) -> None:
        def one(name: str) -> None:
            self._call(partial(work, name), local(name))

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="remote") as threads:
            for future in [threads.submit(one, name) for name in names]:
                future.result()

    def _call(self, work: Callable[[], T], local: Path | None = None) -> T:
        """Call, again where a fault may pass. local: a file that may be removed."""
        for attempt in range(1, self.attempts + 1):
            try:
                return work()
            except RemoteError:
                raise
            except Exception as error:  # the libraries of stores raise kinds of their own
                if local is not None and not local.exists():
                    raise FileNotFoundError(str(local)) from error
                explained = fault_of_store(error, self.address)
                if explained.lasting or attempt == self.attempts:
                    raise explained from error
                time.sleep(PAUSE * 2 ** (attempt - 1))
        raise AssertionError


def fault_of_store(error: Exception, address: str) -> RemoteError:
    """The fault of a store in words, with what to do."""
    kind, text = type(error).__name__, str(error)
    reason = next(iter(text.splitlines()), "") or kind
    match = ADDRESS.match(address)
    scheme, rest = (match["scheme"], match["rest"]) if match else ("", address)
    bucket = rest.partition("/")[0]
    lower = f"{kind} {text}".lower()
    if isinstance(error, ImportError):
        return RemoteError(address, reason.rstrip("."), "Install the library that it names")
    if "credential" in lower or "anonymous" in lower or "token" in kind.lower():
        hint = f"Give {CREDENTIALS.get(scheme, 'the credentials of this store')}"
        return RemoteError(address, f"there are no credentials for it ({reason.rstrip('.')})", hint)
    if isinstance(error, PermissionError) or "accessdenied" in lower or "forbidden" in lower:
        hint = "Check the credentials; they must list, read, write and remove there"
        return RemoteError(address, f"access is denied ({reason.rstrip('.')})", hint)
    if scheme != "file" and (isinstance(error, FileNotFoundError) or "nosuchbucket" in lower):
        hint = "Correct its name, or make it first"
        return RemoteError(address, f"there is no {bucket} in the store", hint)
    if scheme == "file":
        hint = "Give a folder that you may write in"
        return RemoteError(address, f"it cannot be used ({kind}: {reason.rstrip('.')})", hint)
    hint = "Check the network"
    if scheme == "s3":
        hint += f" and AWS_ENDPOINT_URL ({os.environ.get('AWS_ENDPOINT_URL') or 'not set: AWS'})"
    return RemoteError(
        address, f"it cannot be used ({kind}: {reason.rstrip('.')})", hint, lasting=False
    )
