"""Datasets of the `datasets` library read during training: their units, and the rows of a unit."""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from forge.config.numbers import counted
from forge.data.batches.stream_rows import Tokens, Unreadable
from forge.data.batches.streams import Encode, StreamDocument, Streamed
from forge.data.preparing.encode import encode_documents
from forge.data.text.bad_rows import BadRows, left_out
from forge.data.text.conversation import Renders
from forge.data.text.reading import BadFile
from forge.data.text.rows import row_text
from forge.data.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

ROWS_AT_ONCE = 256
MOST_UNEVEN = 1.25
"""Greatest ratio of the largest part of a stream to the smallest."""
FIELD = "data.text_field"
Convert = Callable[[str, dict[str, Any], BadRows], Any]
"""Converts a row to a document, or to input of `Regroup`, with its place for messages; None for a
row left out. BadFile: the row is malformed.
"""
Regroup = Callable[[Iterator[Any]], Iterator[StreamDocument]]
"""Makes the documents of a unit of all its converted rows. BadFile: the rows cannot be used."""


@dataclass(frozen=True, kw_only=True)
class RowKind:
    """How rows become documents. name: identity of the reading. fields: columns read by name, each
    set by the option beside; empty = all columns. masked: whether some tokens are no targets.
    render: makes tokens of conversations. most_bad: rows left out of each unit; None = refused.
    together: number of documents in an example; 0 = running text. regroup: of the rows of a unit,
    for documents made of several rows.
    """

    name: str
    convert: Convert
    fields: tuple[tuple[str, str], ...] = ()
    masked: bool = False
    render: Renders | None = None
    most_bad: int | None = None
    together: int = 0
    regroup: Regroup | None = None


def text_row(field: str, where: str, row: dict[str, Any], bad: BadRows) -> str | None:
    """The text of a row."""
    with bad.row(where):
        return row_text(where, row, field, option=FIELD)
    return None


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a dataset, each read from its beginning: files, or row groups of Parquet where
    files are too few. dataset: of the library, each of its shards a unit. files: of each unit;
    empty where unknown.
    """

    source: str
    kind: RowKind
    dataset: Any
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    process: int
    files: tuple[str, ...] = ()

    def of_last_files(self, number: int) -> frozenset[int]:
        """The units of the last files, by name. ValueError: none would be left to train on."""
        by_name = sorted(set(self.files))
        if number and number >= len(by_name):
            problem = f"the files of {self.source} are not known"
            if by_name:
                problem = f"{self.source} has {counted(len(by_name), 'file')}, and one must be left"
            raise ValueError(f"data.val_files = {number}: {problem}. Hold out fewer.")
        held = set(by_name[len(by_name) - number :]) if number else set()
        return frozenset(unit for unit, file in enumerate(self.files) if file in held)

    def read(self, unit: int, row: int) -> Iterator[StreamDocument | None]:
        """The document of each row of a unit from `row` on, None for a row left out. Raises
        Unreadable, naming the row.
        """
        if self.kind.regroup is None:
            return self._rows(unit, row)
        return islice(self._regrouped(unit, self.kind.regroup), row, None)

    def _regrouped(self, unit: int, regroup: Regroup) -> Iterator[StreamDocument]:
        """Yield the documents of a unit from its beginning, for those before decide the others."""
        try:
            yield from regroup(row for row in self._rows(unit, 0) if row is not None)
        except BadFile as error:
            raise Unreadable(str(error)) from error

    def _rows(self, unit: int, row: int) -> Iterator[Any]:
        """Yield each converted row of a unit from `row` on, None for a row left out."""
        from datasets import Features

        self._enter()
        number, name, bad = 0, self.names[unit], BadRows(most=self.kind.most_bad)
        bad.begin(Path(name))
        try:
            shard = self.dataset.shard(len(self.names), unit).with_format("arrow")
            for table in shard.iter(ROWS_AT_ONCE):
                if number + len(table) <= row:
                    number += len(table)
                    continue
                self._check(table.column_names)
                if self.kind.fields:
                    table = table.select([field for field, _ in self.kind.fields])
                skipped = max(row - number, 0)
                number += skipped
                features = Features.from_arrow_schema(table.schema)
                for content in table.slice(skipped).to_pylist():
                    number += 1
                    row_of_columns = features.decode_example(content)  # values of mixed types
                    yield self._document(f"{name} row {number}", row_of_columns, bad)
            for line in left_out(bad.manifest()):
                log.warning(line)
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
        for field, option in self.kind.fields:
            if field not in columns:
                raise Unreadable(no_column(self.source, field, columns, option))

    def _document(self, where: str, row: dict[str, Any], bad: BadRows) -> Any:
        try:
            return self.kind.convert(where, row, bad)
        except BadFile as error:
            if isinstance(error.__cause__, UnicodeError):
                raise Unreadable(f"data: {where} is not UTF-8 text. Leave it out.") from error
            raise Unreadable(str(error)) from error
        except ValueError as error:  # one bad row too many
            raise Unreadable(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """A dataset before tokenising. units: of the whole dataset; parts: units of each part; held:
    units of the files held out.
    """

    section: Any
    units: Units
    parts: tuple[tuple[int, ...], ...]
    held: frozenset[int] = frozenset()

    @property
    def source(self) -> str:
        return self.units.source

    @property
    def fingerprint(self) -> str:
        """Hash of the names and sizes of units; no content is read."""
        names = [name.rpartition("/")[2] for name in self.units.names]
        identity = [self.units.kind.name, names, self.units.sizes]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    @property
    def render(self) -> Renders | None:
        return self.units.kind.render

    def held_documents(self) -> Iterator[StreamDocument]:
        """Yield the documents of the files held out."""
        for unit in sorted(self.held):
            yield from filter(None, self.units.read(unit, 0))

    def first(self, number: int) -> Iterator[StreamDocument]:
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
        identity: list[Any] = [self.fingerprint, self.parts, shuffled]
        if self.render is not None:
            identity.append(self.render.source(tokenizer))
        held = b"".join(sorted(held_out))
        return Streamed(
            source=self.source,
            fingerprint=hashlib.sha256(json.dumps(identity).encode() + held).hexdigest(),
            parts=self.parts,
            read=self.units.read,
            tokenizer=tokenizer,
            shuffle_buffer=shuffled,
            held_out=held_out,
            encode=self.encode(tokenizer),
            together=self.units.kind.together,
        )

    def encode(self, tokenizer: Tokenizer) -> Encode | None:
        """Tokens and marks of documents, for rows with tokens that are no targets."""
        if not self.units.kind.masked:
            return None
        return partial(_encode, tokenizer=tokenizer, render=self.render)


def _encode(
    documents: Sequence[Any], *, tokenizer: Tokenizer, render: Renders | None
) -> list[Tokens]:
    try:
        return encode_documents(documents, tokenizer=tokenizer, render=render)
    except BadFile as error:
        raise Unreadable(str(error)) from error


def stream(section: Any, found: Any, kind: RowKind) -> StreamSource:
    """Make a source of an iterable dataset of the library. section: with the options of streams.
    ValueError: a column is missing.
    """
    source = section.path or section.hf_dataset_name  # not all sections name datasets
    columns = found.column_names
    if columns is not None and kind.fields:
        for field, option in kind.fields:
            if field not in columns:
                raise ValueError(no_column(source, field, columns, option))
        found = found.select_columns([field for field, _ in kind.fields])
    number = section.held_out.files
    units = _units(found, source, kind)
    parts = _parts(units, units.of_last_files(number), section.stream_parts)
    if len(parts) < section.stream_parts:  # files are too few, or too uneven
        units = _units(found.reshard(), source, kind)
        parts = _parts(units, units.of_last_files(number), section.stream_parts)
    held = units.of_last_files(number)
    return StreamSource(section=section, units=units, parts=parts, held=held)


def _parts(units: Units, held: frozenset[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Divide the units that are not held out."""
    trained = [unit for unit in range(len(units.names)) if unit not in held]
    parts = divided([units.sizes[unit] for unit in trained], most)
    return tuple(tuple(trained[number] for number in part) for part in parts)


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


def _units(found: Any, source: str, kind: RowKind) -> Units:
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
        kind=kind,
        dataset=found,
        names=tuple(names),
        sizes=tuple(sizes),
        process=os.getpid(),
        files=tuple(files) if len(files) == number else (),
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


def no_column(source: str, field: str, columns: Sequence[str], option: str = FIELD) -> str:
    fault = f"{source} has no such column (its columns: {', '.join(columns)})"
    return f"{option} = {field}: {fault}. Name one of them."


def reason_of(error: BaseException) -> str:
    """The first line of the library's error, without its full stop."""
    lines = [*str(error).splitlines(), type(error).__name__]
    return next(line for line in lines if line.strip()).strip().rstrip(".")
