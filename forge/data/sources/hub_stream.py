"""Datasets of the `datasets` library read during training: their units, and the rows of a unit."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forge.config.data.text import HuggingFace
from forge.data.batches.streams import Streamed, Unreadable
from forge.data.text.reading import BadFile
from forge.data.text.rows import text_of
from forge.data.tokenizers.tokenizer import Tokenizer

ROWS_AT_ONCE = 256
MOST_UNEVEN = 1.25
"""Greatest ratio of the largest part of a stream to the smallest."""
FIELD = "data.text_field"


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a dataset, each read from its beginning: files, or row groups of Parquet where
    files are too few. dataset: of the library, each of its shards a unit.
    """

    source: str
    field: str
    dataset: Any
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    process: int

    def read(self, unit: int, row: int) -> Iterator[str]:
        """Yield the text of each row of a unit from `row` on. Raises Unreadable, naming the row."""
        self._enter()
        number, name = 0, self.names[unit]
        try:
            shard = self.dataset.shard(len(self.names), unit).with_format("arrow")
            for table in shard.iter(ROWS_AT_ONCE):
                if number + len(table) <= row:
                    number += len(table)
                    continue
                self._check(table.column_names)
                skipped = max(row - number, 0)
                number += skipped
                for text in table.column(self.field)[skipped:].to_pylist():
                    number += 1
                    yield self._text(f"{name} row {number}", text)
        except Unreadable:
            raise
        except Exception as error:  # the library raises its own, of many kinds
            why = reason_of(error)
            fault = f"cannot read {name} after row {number} ({why})"
            raise Unreadable(f"data: {fault}. Check that it is complete.") from error

    def _enter(self) -> None:
        """Drop the connections of the parent process after a fork."""
        if os.getpid() != self.process:
            from fsspec.asyn import reset_lock

            reset_lock()
            object.__setattr__(self, "process", os.getpid())

    def _check(self, columns: Sequence[str]) -> None:
        if self.field not in columns:
            raise Unreadable(no_column(self.source, self.field, columns))

    def _text(self, where: str, text: Any) -> str:
        try:
            return text_of(where, {self.field: text}, self.field, option=FIELD)
        except BadFile as error:
            raise Unreadable(str(error)) from error
        except UnicodeEncodeError as error:
            raise Unreadable(f"data: {where} is not UTF-8 text. Leave it out.") from error


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """A dataset before tokenising. units: of the whole dataset; parts: units of each part."""

    section: HuggingFace
    units: Units
    parts: tuple[tuple[int, ...], ...]

    @property
    def source(self) -> str:
        return self.units.source

    @property
    def fingerprint(self) -> str:
        """Hash of the names and sizes of units; no content is read."""
        names = [name.rpartition("/")[2] for name in self.units.names]
        identity = [self.units.field, names, self.units.sizes]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def first(self, number: int) -> Iterator[str]:
        """Yield the first `number` documents, in the order of the dataset."""
        remaining = number
        for unit in range(len(self.units.names)):
            for text in self.units.read(unit, 0):
                if remaining == 0:
                    return
                if text:
                    remaining -= 1
                    yield text

    def tokens(self, tokenizer: Tokenizer, held_out: frozenset[bytes]) -> Streamed:
        shuffled = self.section.shuffle_buffer if self.section.shuffle else 1
        identity = [self.fingerprint, self.parts, shuffled]
        held = b"".join(sorted(held_out))
        return Streamed(
            source=self.source,
            fingerprint=hashlib.sha256(json.dumps(identity).encode() + held).hexdigest(),
            parts=self.parts,
            read=self.units.read,
            tokenizer=tokenizer,
            shuffle_buffer=shuffled,
            held_out=held_out,
        )


def stream(section: HuggingFace, found: Any) -> StreamSource:
    """Make a source of an iterable dataset of the library. ValueError: the column is missing."""
    source, field = section.path or section.hf_dataset_name, section.text_field
    columns = found.column_names
    if columns is not None:
        if field not in columns:
            raise ValueError(no_column(source, field, columns))
        found = found.select_columns([field])
    units = _units(found, source, field)
    parts = divided(units.sizes, section.stream_parts)
    if len(parts) < section.stream_parts:  # files are too few, or too uneven
        units = _units(found.reshard(), source, field)
        parts = divided(units.sizes, section.stream_parts)
    return StreamSource(section=section, units=units, parts=parts)


def divided(sizes: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Divide units into at most `most` parts of nearly equal size. Every part gives as many samples
    as any other, and uneven parts would read the small ones more often.
    """
    largest_first = sorted(range(len(sizes)), key=lambda unit: (-sizes[unit], unit))
    for number in range(min(most, len(sizes)), 0, -1):
        heap = [(0, part) for part in range(number)]
        parts: list[list[int]] = [[] for _ in heap]
        for unit in largest_first:
            size, part = heap[0]
            parts[part].append(unit)
            heapq.heapreplace(heap, (size + sizes[unit], part))
        held = [size for size, _ in heap]
        if max(held) <= MOST_UNEVEN * min(held) or number == 1:
            return tuple(tuple(sorted(part)) for part in parts)
    raise AssertionError("a dataset has a unit")


def _units(found: Any, source: str, field: str) -> Units:
    """The library's shards by name, for messages, with their sizes where known."""
    inner = found._ex_iterable
    while not hasattr(inner, "kwargs") and hasattr(inner, "ex_iterable"):
        inner = inner.ex_iterable
    options, number = getattr(inner, "kwargs", {}), found.num_shards
    files = [str(file) for file in options.get("files") or options.get("base_files") or ()]
    names, sizes = [f"{source} part {unit + 1}" for unit in range(number)], [1] * number
    if len(files) == number:
        groups = options.get("row_groups_list") or [None] * number
        names = [
            file if group is None else f"{file} row group {group[0] + 1}"
            for file, group in zip(files, groups, strict=True)
        ]
        sizes = _sizes(files) or sizes
    return Units(
        source=source,
        field=field,
        dataset=found,
        names=tuple(names),
        sizes=tuple(sizes),
        process=os.getpid(),
    )


def _sizes(files: Sequence[str]) -> list[int]:
    """Bytes of each unit by its file, equal for all units of a file; empty where unknown."""
    from fsspec.core import url_to_fs

    shares, bytes_of = Counter(files), {}
    try:
        for file in shares:
            system, path = url_to_fs(file)
            bytes_of[file] = max(int(system.size(path)) // shares[file], 1)
    except Exception:  # a file system without sizes
        return []
    return [bytes_of[file] for file in files]


def no_column(source: str, field: str, columns: Sequence[str]) -> str:
    fault = f"{source} has no such column (its columns: {', '.join(columns)})"
    return f"{FIELD} = {field}: {fault}. Name one of them."


def reason_of(error: BaseException) -> str:
    """The first line of the library's error, without its full stop."""
    lines = [*str(error).splitlines(), type(error).__name__]
    return next(line for line in lines if line.strip()).strip().rstrip(".")
