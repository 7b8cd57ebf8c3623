"""Files of rows to documents: JSON lines, JSON arrays, CSV, Parquet; a field holds the text."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

from forge.data.text import reading
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.reading import (
    UNPACKED,
    BadFile,
    Document,
    format_by_suffix,
    open_bytes,
    refuse_unreadable,
)

ROWS_AT_ONCE = 1024
SPACE = re.compile(r"\s*")
SURROGATES = r'"\ud83d\ude00'  # longest escape cut by the end of a block
ELEMENT = "An element is a text, or an object with a field that holds it"
DEEP = "it is nested too deep, or has a number of too many digits"
MEND = "Mend the file"
QUOTES = "a text with quotes or line ends is in quotes, and its own are doubled"


@contextmanager
def _open_text(path: Path, newline: str | None = None) -> Iterator[IO[str]]:
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline=newline) as text:
        yield text


def read_jsonl(path: Path, text_field: str, bad: BadRows = REFUSED) -> Iterator[Document]:
    """One document a line, from a field of a JSON object; empty lines are skipped."""
    with refuse_unreadable(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                with bad.row(where := f"{path} line {number}"):
                    yield iter((row_text(where, row_of_line(where, line, text_field), text_field),))


def rows_of_file(path: Path, bad: BadRows = REFUSED) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, row) for each row of JSON lines, a JSON array or Parquet."""
    bad.begin(path)
    file_format = format_by_suffix(path)
    if file_format == "jsonl":
        with refuse_unreadable(path), open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = None
                    with bad.row(where := f"{path} line {number}"):
                        row = row_of_line(where, line, "...")
                    if row is not None:
                        yield where, row
    elif file_format == "json":
        with refuse_unreadable(path), _open_text(path) as text:
            for number, element in enumerate(_elements(path, text), start=1):
                with bad.row(where := f"{path} element {number}"):
                    if not isinstance(element, dict):
                        raise BadFile(f"{where} is not a JSON object", "Every element must be one")
                if isinstance(element, dict):
                    yield where, element
    elif file_format == "parquet":
        for number, row in enumerate(_parquet_rows(path, None), start=1):
            yield f"{path} row {number}", row
    else:
        hint = "Give files named .jsonl, .json or .parquet"
        raise BadFile(f"{path} is not named as rows of JSON or Parquet", hint)


def row_of_line(where: str, line: bytes, text_field: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig").rstrip())
    except json.JSONDecodeError as error:
        message = f"{where} is not JSON ({error.msg} at column {error.colno})"
        raise BadFile(message, "Every line must be one JSON object") from error
    except UnicodeDecodeError:
        raise
    except (RecursionError, ValueError) as error:  # Python reads at most 4,300 digits
        raise BadFile(f"{where} cannot be read as JSON ({DEEP})", "Leave the line out") from error
    if not isinstance(row, dict):
        hint = f"Every line must look like {{{json.dumps(text_field)}: ...}}"
        raise BadFile(f"{where} is not a JSON object", hint)
    return row


def json_documents(path: Path, text_field: str, bad: BadRows = REFUSED) -> Iterator[Document]:
    """One document per element of a JSON array, a text or an object; a single object is one
    document.
    """
    with refuse_unreadable(path), _open_text(path) as text:
        for number, element in enumerate(_elements(path, text), start=1):
            with bad.row(where := f"{path} element {number}"):
                yield iter((row_text(where, element, text_field),))


def _elements(path: Path, file: IO[str]) -> Iterator[Any]:
    """Yield the elements of an array, holding a few blocks of the file in memory."""
    decode, number = json.JSONDecoder().raw_decode, 1
    text, position = file.read(reading.BLOCK_BYTES).lstrip(), 1
    if not text.startswith("["):
        yield _whole(path, text + file.read())
        return
    text, position = _past_space(text, position, file)
    while not text.startswith("]", position):
        if number > 1:
            if position < len(text) and text[position] != ",":
                message = f"{path} element {number} does not follow a comma"
                raise BadFile(message, "Mend the file: a comma is between two elements")
            text, position = _past_space(text, position + 1, file)
        fault, complete = "it ends before the array does", False
        try:
            element, end = decode(text, position)
            if end < len(text):
                yield element
                number += 1
                text, position = _past_space(text, end, file)
                continue
        except json.JSONDecodeError as error:
            # Only an error at the end of a block may be mended by the next block.
            unended = error.msg.startswith("Unterminated string")
            fault, complete = error.msg, not unended and error.pos < len(text) - len(SURROGATES)
        except (RecursionError, ValueError) as error:
            message = f"{path} element {number} cannot be read as JSON ({DEEP})"
            raise BadFile(message, "Leave the element out") from error
        # Grow with the element, to parse a long element only a few times.
        block = "" if complete else file.read(max(reading.BLOCK_BYTES, len(text) - position))
        if not block:
            message = f"{path} element {number} is not JSON ({fault})"
            raise BadFile(message, "Mend the file, and check that it is complete")
        text, position = "," * (number > 1) + text[position:] + block, 0
    text, position = _past_space(text, position + 1, file)
    if position < len(text):
        message = f"{path} has something after its array ({text[position : position + 20]!r})"
        raise BadFile(message, "Mend the file: a .json has one array; of several make a file each")


def _past_space(text: str, at: int, file: IO[str]) -> tuple[str, int]:
    """Skip space from `at` on, reading further blocks where `text` ends. Returns the text and the
    position of its first other character; at the end of the file, an empty text and 0.
    """
    while (at := SPACE.match(text, at).end()) == len(text):  # type: ignore[union-attr]
        text, at = file.read(reading.BLOCK_BYTES), 0
        if not text:
            break
    return text, at


def _whole(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"{path} is not JSON ({error.msg} at line {error.lineno} column {error.colno})"
        hint = "Mend the file: a .json has an array, an object, or an object a line"
        raise BadFile(message, hint) from error
    except (RecursionError, ValueError) as error:
        raise BadFile(f"{path} cannot be read as JSON ({DEEP})", "Mend the file") from error


def read_csv(
    path: Path, text_field: str, delimiter: str, bad: BadRows = REFUSED
) -> Iterator[Document]:
    """One document a row, from a column named in the first row."""
    csv.field_size_limit(sys.maxsize)  # the library's limit, 128 KiB, is too small for documents
    with refuse_unreadable(path), _open_text(path, newline="") as text:
        try:
            head = text.readline()
            for mark in (delimiter, ";", "\t", "|"):
                if text_field in [name.strip('" \r\n') for name in head.split(mark)]:
                    delimiter = mark
                    break
            rows = csv.DictReader(chain([head], text), delimiter=delimiter, strict=True)
            _need(str(path), rows.fieldnames or (), text_field)
            for row in rows:
                with bad.row(where := f"{path} line {rows.reader.line_num}"):
                    if row[text_field] is None:
                        raise BadFile(f"{where} ends before its field {text_field!r}", MEND)
                    if None in row:  # key of the library for surplus fields
                        message = f"{where} has more than the {len(rows.fieldnames or ())} fields"
                        raise BadFile(f"{message} that its first line names", f"{MEND}; {QUOTES}")
                    yield iter((row_text(where, row, text_field),))
        except csv.Error as error:
            message = f"{path} line {rows.reader.line_num} is no row of a table ({error})"
            raise BadFile(message, f"{MEND}; {QUOTES}") from error


def read_parquet(path: Path, text_field: str, bad: BadRows = REFUSED) -> Iterator[Document]:
    """One document a row, from a column."""
    for number, row in enumerate(_parquet_rows(path, text_field), start=1):
        with bad.row(where := f"{path} row {number}"):
            yield iter((row_text(where, row, text_field),))


def _parquet_rows(path: Path, field: str | None) -> Iterator[dict[str, Any]]:
    """Yield rows with one field each; None = with all fields."""
    if path.suffix in UNPACKED:
        packing, command = {".gz": ("gzip", "gunzip"), ".zst": ("zstd", "unzstd")}[path.suffix]
        hint = f"Unpack it ({command}); Parquet is packed by itself"
        raise BadFile(f"{path} is Parquet inside of {packing}", hint)
    import pyarrow
    from pyarrow import parquet

    with refuse_unreadable(path):
        try:
            file = parquet.ParquetFile(path)
            if field is not None:
                _need(str(path), file.schema_arrow.names, field)
            columns = None if field is None else [field]
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                yield from batch.to_pylist()
        except pyarrow.ArrowException as error:
            raise BadFile(f"cannot read {path} ({error})", "Check that it is complete") from error


def row_text(
    where: str, row: Any, field: str, *, option: str = "data.text_field", chats: str = "chat"
) -> str:
    """The text of a row, or of its field, set by `option`. chats: the choice of data for rows of
    messages, suggested in the error.
    """
    whose = ""
    if isinstance(row, dict):
        _need(where, row, field, option)
        row, whose = row[field], f": field {field!r}"
    if not isinstance(row, str):
        kind = "null" if row is None else type(row).__name__
        hint = f"Choose another with {option}" if whose else ELEMENT
        if whose and isinstance(row, list) and row and isinstance(row[0], dict):
            kind_of_chats = "sharegpt" if "value" in row[0] and chats == "chat" else chats
            hint += f", or data={kind_of_chats}, which reads messages"
        raise BadFile(f"{where}{whose} is {kind}, not text", hint)
    row.encode()  # halves of surrogate pairs are no text
    return row


def _need(where: str, fields: Iterable[Any], field: str, option: str = "data.text_field") -> None:
    if field not in (names := [str(name) for name in fields]):
        listed = [name if len(name) <= 40 else f"{name[:40]}..." for name in names[:20]]
        listed += ["..."] if len(names) > 20 else []
        listing = ", ".join(listed) or "none"
        hint = f"Name the one that holds the text with {option}"
        raise BadFile(f"{where} has no field {field!r} (its fields: {listing})", hint)
