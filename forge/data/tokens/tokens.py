"""Corpora of tokens: shards made elsewhere, and random tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forge.config.data.text import Shards, Synthetic
from forge.config.places import is_remote
from forge.data.text.corpus import refuse_broken
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.manifest import read_manifest
from forge.data.tokens.shards import HASHED_WHOLE_BYTES, BrokenStore, IndexedStore
from forge.data.tokens.store import MappedStore, Slice, TokenStore, sample_blocks, sample_hash
from forge.data.tokens.token_files import TokenFile, bad, token_file
from forge.rundir.remote.local_copy import local_folder

DRAWN_AT_ONCE = 1 << 12
Splits = tuple[TokenStore, TokenStore]


@dataclass(frozen=True, kw_only=True)
class TokenSource:
    """A corpus of tokens, and its training and validation split for a tokenizer and a held-out
    share; 1 = everything is validation.
    """

    source: str
    n_files: int
    splits: Callable[[Tokenizer, float], Splits]


class NoText:
    """Stands for the text of a trained tokenizer where data has none."""

    def sample(self, max_bytes: int, document_characters: int = 0) -> Iterator[str]:
        fault = "tokenizer: it is trained on text, and data holds tokens."
        hint = "Name the one that they are of: tokenizer=file tokenizer.path=my/tokenizer.json."
        raise ValueError(f"{fault} {hint}")


class FileStore(MappedStore):
    """Files of tokens, mapped in place; pickles as their paths. Every token read is checked against
    the tokenizer's ids.
    """

    def __init__(self, files: Sequence[TokenFile], *, n_ids: int) -> None:
        self.files, self.n_ids = files, n_ids
        super().__init__([file.map() for file in files])

    def __reduce__(self) -> tuple[Any, ...]:
        return _file_store, (self.files, self.n_ids)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokens; large files count by samples."""
        types = [f"{file.dtype} {file.n_tokens}" for file in self.files]
        hashes = [sample_hash(part) for part in self.parts]
        return hashlib.sha256("\n".join(types + hashes).encode()).hexdigest()

    @property
    def stamp(self) -> str:
        changed = [file.path.stat().st_mtime_ns for file in self.files]
        return hashlib.sha256(f"{self.fingerprint} {changed}".encode()).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        tokens = super().read(start, stop)
        self._check(tokens, self.files[0].path.parent)
        return tokens

    def verify(self) -> None:
        """Check the tokens of the files, beyond 64 MiB in samples. ValueError: ids beyond the
        tokenizer's.
        """
        for file, part in zip(self.files, self.parts, strict=True):
            check_all = part.nbytes <= HASHED_WHOLE_BYTES
            for block in (part,) if check_all else sample_blocks(part):
                self._check(block, file.path)

    def _check(self, tokens: np.ndarray, where: Path) -> None:
        least, greatest = int(tokens.min()), int(tokens.max())
        if least < 0 or greatest >= self.n_ids:
            wrong = least if least < 0 else greatest
            fault = f"has the token {wrong}, and the tokenizer has ids from 0 to {self.n_ids - 1}"
            hint = "Choose the tokenizer that the shards were made with; and check data.dtype"
            raise bad(where, fault, hint)


def _file_store(files: Sequence[TokenFile], n_ids: int) -> FileStore:
    return FileStore(files, n_ids=n_ids)


def shards(section: Shards) -> TokenSource:
    """Token shards in a directory; a directory made by forge.prepare keeps its own splits.

    Of a remote store a copy is read. ValueError, naming data.path: no shard matches, or a shard is
    malformed.
    """
    if is_remote(section.path):
        local = local_folder(section.path, section.cache_dir, section.file_pattern)
        section = replace(section, path=str(local))
    files = [Path(name) for name in section.files()]
    refuse_broken([Path(name) for name in section.names()])
    if not files:
        fault = f"no shards in it that match {section.file_pattern or '*.npy or *.bin'}"
        hint = "Give a directory of token shards, and with data.file_pattern what they are called."
        raise ValueError(f"data.path = {section.path}: {fault}. {hint}")

    def splits(tokenizer: Tokenizer, val_fraction: float) -> Splits:
        root = Path(section.path)
        if section.is_prepared:
            stores = [_indexed(root / name, section, tokenizer) for name in ("train", "val")]
            if not val_fraction:
                return stores[0], Slice(stores[1], 0, 0)
            if val_fraction < 1:
                return stores[0], stores[1]
            fault = f"it has the splits of forge.prepare. Name one of them, {section.path}/val."
            raise ValueError(f"data.path = {section.path}: {fault}")
        if section.is_indexed:
            return _cut(section.path, _indexed(root, section, tokenizer), val_fraction)
        token_files = [token_file(path, section.dtype) for path in files]
        store = FileStore(token_files, n_ids=tokenizer.vocab_size)
        store.verify()
        return _cut(section.path, store, val_fraction)

    return TokenSource(source=section.path, n_files=len(files), splits=splits)


def _indexed(directory: Path, section: Shards, tokenizer: Tokenizer) -> IndexedStore:
    """Open a store written by forge. ValueError: damaged, or in the tokens of another tokenizer."""
    try:
        store = IndexedStore(directory)
        store.verify()
        expected, beside = store.index.tokenizer, directory.parent / "tokenizer"
        saved = None
        if beside.is_dir():  # the fingerprint by the installed library
            read_manifest(directory.parent)
            saved = Tokenizer.load(beside)
            expected = saved.fingerprint
    except BrokenStore as error:
        raise ValueError(f"data.path = {directory}: {error}. Prepare it again.") from error
    if section.dtype not in (None, np.dtype(store.index.dtype).name):
        fault = f"has tokens of {np.dtype(store.index.dtype)}, and data.dtype={section.dtype}"
        raise bad(directory, fault, "Leave data.dtype out: its index.json says it")
    if expected not in ("", tokenizer.fingerprint):
        fault = "these shards were made with another tokenizer"
        spelling = f": {saved.typed(beside)}" if saved else ""
        raise ValueError(f"data.path = {directory}: {fault}. Choose theirs{spelling}.")
    return store


def _cut(source: str, store: TokenStore, val_fraction: float) -> Splits:
    """The last tokens for validation, the rest for training."""
    validation_only = val_fraction == 1
    held = len(store) if validation_only else max(round(len(store) * val_fraction), 2)
    if not val_fraction:
        held = 0
    elif held < 2 or len(store) - held < (0 if validation_only else 2):
        fault = f"{len(store):,} tokens are too few to hold some out for validation"
        raise ValueError(f"data.path = {source}: {fault}. Give more shards.")
    border = len(store) - held
    return Slice(store, 0, border), Slice(store, border, len(store))


class RandomStore(TokenStore):
    """Random ids, each a function of seed and position: nothing is stored, any part can be read."""

    def __init__(self, n_tokens: int, *, n_ids: int, seed: int) -> None:
        self.n_tokens, self.n_ids, self.seed = n_tokens, n_ids, seed

    def __len__(self) -> int:
        return self.n_tokens

    @property
    def fingerprint(self) -> str:
        text = f"random {self.n_tokens} {self.n_ids} {self.seed} {DRAWN_AT_ONCE}"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """uint32 [stop - start], in blocks of 4096 by counter-based generators."""
        assert 0 <= start < stop <= len(self), (start, stop, len(self))
        first, last = start // DRAWN_AT_ONCE, (stop - 1) // DRAWN_AT_ONCE
        drawn = np.concatenate([self._block(number) for number in range(first, last + 1)])
        return drawn[start - first * DRAWN_AT_ONCE : stop - first * DRAWN_AT_ONCE]

    def _block(self, number: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=[self.seed, number]))
        return generator.integers(0, self.n_ids, DRAWN_AT_ONCE, dtype=np.uint32)


def synthetic(section: Synthetic) -> TokenSource:
    """Random tokens, each id of the tokenizer as often as any other."""

    def splits(tokenizer: Tokenizer, val_fraction: float) -> Splits:
        store = RandomStore(section.tokens, n_ids=tokenizer.vocab_size, seed=section.seed)
        return _cut("synthetic", store, val_fraction)

    return TokenSource(source="synthetic", n_files=0, splits=splits)
