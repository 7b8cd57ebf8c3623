"""Files to documents, a block of text at a time."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import tokenize
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 1 << 20
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text with a beginning and an end; `blocks` is read once, before the next document."""

    name: str
    blocks: Iterator[str]


def kind(path: Path) -> str:
    """`jsonl` or `text`, by the suffix in front of a `.gz`."""
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    return "jsonl" if suffixes and suffixes[-1].lower() in JSON_LINES else "text"


def open_bytes(path: Path) -> io.BufferedIOBase:
    """The bytes of a file, unpacked when its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def read_text(path: Path) -> Iterator[Document]:
    """A whole file as one document."""
    yield Document(name=str(path), blocks=_text_blocks(path))


def _text_blocks(path: Path) -> Iterator[str]:
    # utf-8-sig drops the byte order mark that some editors put first.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    position = 0
    try:
        with open_bytes(path) as file:
            while block := file.read(BLOCK_BYTES):
                yield decoder.decode(block)
                position += len(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data.path: {path} is not UTF-8 text ({error.reason} near byte {position + error.start}). "
            f"Convert it (iconv -t utf-8), or leave it out with a narrower glob such as '**/*.txt'."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def read_jsonl(path: Path, text_field: str) -> Iterator[Document]:
    """One document a line, from a field of a JSON object; empty lines are skipped."""
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    text = _text_of_line(path, number, line, text_field)
                    yield Document(name=f"{path}:{number}", blocks=iter((text,)))
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def _text_of_line(path: Path, number: int, line: bytes, text_field: str) -> str:
    where = f"data.path: {path} line {number}"
    try:
        row = json.loads(line.decode("utf-8-sig").rstrip())
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text ({error.reason} at byte {error.start}). Convert the file (iconv -t utf-8).") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON ({error.msg} at column {error.colno}). Every line must be one JSON object.") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not a JSON object. Every line must look like {{{json.dumps(text_field)}: ...}}.")
    if text_field not in row:
        fields = ", ".join(map(str, row)) or "none"
        raise ValueError(
            f"{where} has no field {text_field!r} (its fields: {fields}). Name the one that holds the text with data.text_field."
        )
    text = row[text_field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: field {text_field!r} is {type(text).__name__}, not text. Choose another with data.text_field.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has half of a surrogate pair at character {error.start}, which is not text. Fix or drop the line."
        ) from error
    return text


def read_python(path: Path) -> Iterator[Document]:
    """A Python file in the encoding it declares (PEP 263); one that cannot be decoded is left out."""
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return
    except OSError as error:
        raise unreadable(path, error) from error
    yield Document(name=str(path), blocks=iter((text,)))


def unreadable(path: Path, error: Exception) -> ValueError:
    """What a person is told when a file of the corpus cannot be read to its end."""
    reason = getattr(error, "strerror", None) or str(error)
    return ValueError(f"data.path: cannot read {path} ({reason}). Check that it is complete and that you may read it.")
