"""Datasets that the `datasets` library reads while they train: their units, and the rows of one."""

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
"""How many times as large as the smallest part of a stream its largest is at most."""
FIELD = "data.text_field"


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a dataset that are read from their beginning on: files, and of Parquet row
    groups where there are too few files. dataset: of the library, each of its shards a unit.
    """

    source: str
    field: str
    dataset: Any
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    process: int

    def read(self, unit: int, row: int) -> Iterator[str]:
        """The text of each row of a unit from one on. Raises Unreadable, naming the row."""
        self._enter()
        number, name = 0, self.names[unit]
        try:
            one = self.dataset.shard(len(self.names), unit).with_format("arrow")
            for table in one.iter(ROWS_AT_ONCE):
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
            what = f"cannot read {name} after row {number} ({why})"
            raise Unreadable(f"data: {what}. Check that it is complete.") from error

    def _enter(self) -> None:
        """Where a process was forked, connections of the other are not used."""
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
    """A dataset before it is tokenised. units: of all of it; parts: those of each part."""

    section: HuggingFace
    units: Units
    parts: tuple[tuple[int, ...], ...]

    @property
    def source(self) -> str:
        return self.units.source

    @property
    def fingerprint(self) -> str:
        """Hash of the names and sizes of what is read; the content is not read for it."""
        names = [name.rpartition("/")[2] for name in self.units.names]
        known = [self.units.field, names, self.units.sizes]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def first(self, number: int) -> Iterator[str]:
        """The first documents, in the order of the dataset."""
        left = number
        for unit in range(len(self.units.names)):
            for text in self.units.read(unit, 0):
                if left == 0:
                    return
                if text:
                    left -= 1
                    yield text

    def tokens(self, tokenizer: Tokenizer, held_out: frozenset[bytes]) -> Streamed:
        shuffled = self.section.shuffle_buffer if self.section.shuffle else 1
        known = [self.fingerprint, self.parts, shuffled]
        held = b"".join(sorted(held_out))
        return Streamed(
            source=self.source,
            fingerprint=hashlib.sha256(json.dumps(known).encode() + held).hexdigest(),
            parts=self.parts,
            read=self.units.read,
            tokenizer=tokenizer,
            shuffle_buffer=shuffled,
            held_out=held_out,
        )


def stream(section: HuggingFace, found: Any) -> StreamSource:
    """A dataset of the library, iterable, as a source. ValueError: it has no such column."""
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
    """Units in at most `most` parts of nearly equal size: each part has as many samples as any
    other, so that of uneven ones the small would be read more often.
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
    """The library's shards by name, for messages, with their sizes where they are known."""
    inner = found._ex_iterable
    while not hasattr(inner, "kwargs") and hasattr(inner, "ex_iterable"):
        inner = inner.ex_iterable
    known, number = getattr(inner, "kwargs", {}), found.num_shards
    files = [str(file) for file in known.get("files") or known.get("base_files") or ()]
    names, sizes = [f"{source} part {unit + 1}" for unit in range(number)], [1] * number
    if len(files) == number:
        groups = known.get("row_groups_list") or [None] * number
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
    """Bytes of each unit, given its file, the same for all of a file; empty where not known."""
    from fsspec.core import url_to_fs

    shares, bytes_of = Counter(files), {}
    try:
        for file in shares:
            system, path = url_to_fs(file)
            bytes_of[file] = max(int(system.size(path)) // shares[file], 1)
    except Exception:  # of a file system that has no sizes
        return []
    return [bytes_of[file] for file in files]


def no_column(source: str, field: str, columns: Sequence[str]) -> str:
    what = f"{source} has no such column (its columns: {', '.join(columns)})"
    return f"{FIELD} = {field}: {what}. Name one of them."


def reason_of(error: BaseException) -> str:
    """The first line of what the library says, without its full stop."""
    lines = [*str(error).splitlines(), type(error).__name__]
    return next(line for line in lines if line.strip()).strip().rstrip(".")
