"""Files to documents: kinds of files, and how to open each; rows are in `rows`."""

from __future__ import annotations

import codecs
import gzip
import io
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from forge.config.regular import check_regular, open_regular, read_bytes
from forge.data.text.conversation import Conversation

BLOCK_BYTES = 1 << 20
KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
SHOWN = 20  # of many bad files
UNPACKED = (".gz", ".zst")  # readable compressions of a single file
PACKED = (".tar.gz", ".tar.zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".tar", ".tgz")
LOOKED_AT = 1 << 13  # first bytes of a file; a NUL in them marks binary data, as in git
LEAVE_OUT = "leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder)"


class Pair(NamedTuple):
    """A prompt and its response; targets are the tokens of the response and the end of text."""

    prompt: str
    response: str


class Example(NamedTuple):
    """Documents compared with each other, consecutive in one split. liked: whether the first
    document of a labelled example is desirable; its further documents belong to other examples.
    """

    documents: tuple[Pair | Conversation, ...]
    liked: bool | None = None

    @property
    def own(self) -> tuple[Pair | Conversation, ...]:
        """Documents deciding the split of the example."""
        return self.documents if self.liked is None else self.documents[:1]


Document = Iterator[str] | Pair | Conversation | Example
"""Blocks of one text, to be read before the next document; or an indivisible document."""


class BadFile(ValueError):
    """A file of the corpus unfit for training: the fault, and advice."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"data.path: {what}. {fix}.")
        self.what, self.fix = what, fix


def all_of(bad: Sequence[BadFile], files: int) -> ValueError:
    """One error for all bad files of `files`, grouped by their advice."""
    if len(bad) == 1:
        return bad[0]
    by_fix: dict[str, list[str]] = {}
    for error in bad[:SHOWN]:
        by_fix.setdefault(error.fix, []).append(error.what)
    lines = [f"data.path: {len(bad)} of {files} files cannot be read:"]
    lines += [line for hint, messages in by_fix.items() for line in (*messages, f"-> {hint}.")]
    if len(bad) > SHOWN:
        lines.append(f"... and {len(bad) - SHOWN} more")
    return ValueError("\n  ".join(lines))


def format_by_suffix(path: Path) -> str:
    """jsonl, json (an array or one object), csv, tsv, parquet or text, by the suffix."""
    suffix = next(
        (suffix.lower() for suffix in reversed(path.suffixes) if suffix not in UNPACKED), ""
    )
    return _kind_of_json(path) if suffix == ".json" else KINDS.get(suffix, "text")


def _kind_of_json(path: Path) -> str:
    """jsonl for rows line by line, else json: one value, an array of rows or a row."""
    try:
        with open_bytes(path) as file:
            lines = (line.strip() for line in iter(lambda: file.readline(BLOCK_BYTES << 6), b""))
            filled = (line for line in lines if line)
            first = next(filled, b"").removeprefix(codecs.BOM_UTF8).lstrip()
            is_object = first.startswith(b"{") and first.endswith(b"}")
            return "jsonl" if is_object and next(filled, b"").startswith(b"{") else "json"
    except (OSError, EOFError, zlib.error):
        return "text"  # reading raises the error


def open_bytes(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The bytes of a file, unpacked when its name ends in .gz or .zst."""
    if path.suffix == ".gz":
        check_regular(path)
        return gzip.open(path, "rb")
    if path.suffix != ".zst":
        return open_regular(path)
    import pyarrow

    packed: Any = open_regular(path)
    return io.BufferedReader(pyarrow.CompressedInputStream(packed, "zstd"), BLOCK_BYTES)


def text_document(path: Path) -> Iterator[Document]:
    """A whole file as one document."""
    yield _text_blocks(path)


def _text_blocks(path: Path) -> Iterator[str]:
    # utf-8-sig drops the byte order mark of some editors.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    if path.name.lower().endswith(PACKED):
        message = f"{path} is packed in a way that is not read here"
        raise BadFile(message, "Unpack it, or pack it with gzip or zstd")
    with refuse_unreadable(path), open_bytes(path) as file:
        first = block = file.read(BLOCK_BYTES)
        utf_16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if b"\0" in first[:LOOKED_AT] and not utf_16:
            raise BadFile(f"{path} is not text (it has NUL bytes)", LEAVE_OUT.capitalize())
        while block:
            yield decoder.decode(block)
            block = file.read(BLOCK_BYTES)
        decoder.decode(b"", final=True)


def read_python(path: Path) -> Iterator[Document]:
    """A Python file in its declared encoding (PEP 263); left out if undecodable."""
    with refuse_unreadable(path):
        content = read_bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return
    yield iter((text,))


@contextmanager
def refuse_unreadable(what: object) -> Iterator[None]:
    """Turn errors of an unreadable file, or of text not in UTF-8, into BadFile."""
    try:
        yield
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        message = f"{what} is not UTF-8 text ({error.reason})"
        raise BadFile(message, f"Convert it (iconv -t utf-8), or {LEAVE_OUT}") from error
    except MemoryError as error:
        message = f"a line or value of {what} does not fit in the memory, unpacked"
        raise BadFile(message, f"Look what is in it, or {LEAVE_OUT}") from error
    except (OSError, EOFError, zlib.error) as error:
        message = f"cannot read {what} ({getattr(error, 'strerror', None) or error})"
        raise BadFile(message, "Check that it is complete and that you may read it") from error
