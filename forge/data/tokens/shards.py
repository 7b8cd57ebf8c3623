"""Token ids on disk: memory-mapped shards and a JSON index of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forge.config.regular import read_json
from forge.data.tokens.store import MappedStore, sample_hash

FORMAT = 1
INDEX_FILE = "index.json"
DOCUMENTS = "documents.i64"  # file of a store: start of each document, end of the last
COUNTED = "counted"  # folder of a store: the marks of each token, bits as in `store`
SHARD_TOKENS = 1 << 28
HASHED_WHOLE_BYTES = 64 << 20


class BrokenStore(Exception):
    """A store on disk differs from its index; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of tokens; `sample_sha256` covers 64 blocks of 16 KiB, evenly spread."""

    file: str
    n_tokens: int
    sha256: str
    sample_sha256: str


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of a store. tokenizer: its fingerprint. documents: file of the int64 start of
    each document, then the end of the last. Only forge.prepare writes both; stores of examples have
    `documents` too. together: number of documents in an example; 0 = running text.
    """

    dtype: str
    n_tokens: int
    n_bytes: int
    n_documents: int
    shards: tuple[Shard, ...]
    tokenizer: str = ""
    documents: str = ""
    together: int = 0


class IndexedStore(MappedStore):
    """A store written by a ShardWriter; pickles as its path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index = read_index(directory)
        super().__init__(
            [
                _map(directory / shard.file, self.index.dtype, shard.n_tokens)
                for shard in self.index.shards
            ]
        )
        folder = directory / COUNTED
        self.counted: IndexedStore | None = IndexedStore(folder) if folder.is_dir() else None
        self.together = self.index.together

    @property
    def offsets(self) -> np.ndarray:
        return np.fromfile(self.directory / self.index.documents, "<i8")

    def __reduce__(self) -> tuple[type[IndexedStore], tuple[Path]]:
        return IndexedStore, (self.directory,)

    @cached_property
    def fingerprint(self) -> str:
        stores = [self, *filter(None, [self.counted])]
        hashes = "".join(shard.sha256 for store in stores for shard in store.index.shards)
        return hashlib.sha256(hashes.encode()).hexdigest()

    def verify(self) -> None:
        """Compare shards with their hashes, beyond 64 MiB in samples. BrokenStore: a hash
        differs.
        """
        if self.counted is not None:
            if len(self.counted) != len(self):
                raise BrokenStore(f"{self.directory.name}/{COUNTED} is of another length")
            self.counted.verify()
        hash_all = len(self) * np.dtype(self.index.dtype).itemsize <= HASHED_WHOLE_BYTES
        for shard, tokens in zip(self.index.shards, self.parts, strict=True):
            if hash_all:
                intact = hashlib.sha256(tokens.data).hexdigest() == shard.sha256
            else:
                intact = sample_hash(tokens) == shard.sample_sha256
            if not intact:
                file = f"{self.directory.name}/{shard.file}"
                raise BrokenStore(f"{file} does not have the content that was written")


def read_index(directory: Path) -> Index:
    """Read the index of a directory. BrokenStore: missing, or not in forge's format."""
    name = f"{directory.name}/{INDEX_FILE}"
    with damage_of(name):
        content: dict[str, Any] = read_json(directory / INDEX_FILE)
        if content.pop("format") != FORMAT:
            raise BrokenStore(f"{name} is of another format")
        shards = tuple(Shard(**shard) for shard in content.pop("shards"))
        return Index(shards=shards, **content)


def write_index(directory: Path, index: Index) -> None:
    """Write the index of a directory of shards."""
    unsaid = {"tokenizer": "", "documents": "", "together": 0}
    content = {k: value for k, value in asdict(index).items() if value != unsaid.get(k)}
    (directory / INDEX_FILE).write_text(json.dumps({"format": FORMAT} | content, indent=2))


def write_examples(directory: Path, index: Index, ends: np.ndarray, together: int) -> Index:
    """Complete a store of examples. ends: past-the-end token of each document, int64 [documents].
    together: number of documents in an example.
    """
    np.append(0, ends).astype("<i8").tofile(directory / DOCUMENTS)
    index = replace(index, documents=DOCUMENTS, together=together)
    write_index(directory, index)
    return index


@contextmanager
def damage_of(name: str) -> Iterator[None]:
    """Turn errors of reading one of forge's files of plain data into BrokenStore."""
    try:
        yield
    except FileNotFoundError as error:
        raise BrokenStore(f"{name} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenStore(f"{name} cannot be read ({error})") from error


def _map(path: Path, dtype: str, n_tokens: int) -> np.ndarray:
    where = f"{path.parent.name}/{path.name}"
    with damage_of(where):
        size = path.stat().st_size
    expected = n_tokens * np.dtype(dtype).itemsize
    if size != expected:
        raise BrokenStore(f"{where} has {size:,} bytes instead of {expected:,}")
    # A plain array over the map: slicing np.memmap itself costs a microsecond more.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


class ShardWriter:
    """Writes the tokens of one split to a directory in order, and its index at close()."""

    def __init__(
        self,
        directory: Path,
        *,
        vocab_size: int = 0,
        shard_tokens: int = SHARD_TOKENS,
        dtype: str | None = None,
    ) -> None:
        """dtype: None = the smallest type for tokens below vocab_size."""
        directory.mkdir(parents=True)
        self.dtype = np.dtype(dtype or ("<u2" if vocab_size <= 1 << 16 else "<u4"))
        self.n_tokens = 0
        self.directory = directory
        self._shard_tokens = shard_tokens
        self._shards: list[Shard] = []
        self._file: Any = None
        self._digest = hashlib.sha256()
        self._in_shard = 0

    def append(self, tokens: np.ndarray) -> None:
        """Add tokens: [n] of any integer type."""
        tokens = tokens.astype(self.dtype)
        while len(tokens):
            part, tokens = np.split(tokens, [self._shard_tokens - self._in_shard])
            if self._file is None:
                self._file = open(self.directory / self._name(), "wb")  # noqa: SIM115
            self._file.write(part)
            self._digest.update(part.data)
            self._in_shard += len(part)
            self.n_tokens += len(part)
            if self._in_shard == self._shard_tokens:
                self._finish_shard()

    def close(self, *, n_bytes: int, n_documents: int) -> Index:
        """Write the index."""
        if self._file is not None:
            self._finish_shard()
        index = Index(
            dtype=self.dtype.str,
            n_tokens=self.n_tokens,
            n_bytes=n_bytes,
            n_documents=n_documents,
            shards=tuple(self._shards),
        )
        write_index(self.directory, index)
        return index

    def _name(self) -> str:
        return f"{len(self._shards):05d}.bin"

    def _finish_shard(self) -> None:
        self._file.close()
        name = self._name()
        tokens = _map(self.directory / name, self.dtype.str, self._in_shard)
        shard = Shard(
            file=name,
            n_tokens=self._in_shard,
            sha256=self._digest.hexdigest(),
            sample_sha256=sample_hash(tokens),
        )
        self._shards.append(shard)
        self._file, self._digest, self._in_shard = None, hashlib.sha256(), 0
