"""Files to documents: the kinds of files, and how they are opened; rows are in `rows`."""

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
UNPACKED = (".gz", ".zst")  # ways of packing one file that are read
PACKED = (".tar.gz", ".tar.zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".tar", ".tgz")
LOOKED_AT = 1 << 13  # bytes of a file in which a NUL shows that it is no text, as git has it
LEAVE_OUT = "leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder)"


class Pair(NamedTuple):
    """A prompt and its response; targets are the tokens of the response and the end of text."""

    prompt: str
    response: str


class Example(NamedTuple):
    """Documents that are compared, which stand one behind the other in one split. liked: of an
    example with a label, whether its first document is desirable; the others are of other examples.
    """

    documents: tuple[Pair | Conversation, ...]
    liked: bool | None = None

    @property
    def own(self) -> tuple[Pair | Conversation, ...]:
        """Those by which its split is known."""
        return self.documents if self.liked is None else self.documents[:1]


Document = Iterator[str] | Pair | Conversation | Example
"""Blocks of one text, read once, before the next document; or what is never divided."""


class BadFile(ValueError):
    """A file of the corpus that cannot be trained on: what is wrong with it, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"data.path: {what}. {fix}.")
        self.what, self.fix = what, fix


def all_of(bad: Sequence[BadFile], files: int) -> ValueError:
    """One error for all bad files of `files`; those with the same advice together."""
    if len(bad) == 1:
        return bad[0]
    by_fix: dict[str, list[str]] = {}
    for one in bad[:SHOWN]:
        by_fix.setdefault(one.fix, []).append(one.what)
    lines = [f"data.path: {len(bad)} of {files} files cannot be read:"]
    lines += [line for fix, found in by_fix.items() for line in (*found, f"-> {fix}.")]
    if len(bad) > SHOWN:
        lines.append(f"... and {len(bad) - SHOWN} more")
    return ValueError("\n  ".join(lines))


def kind(path: Path) -> str:
    """jsonl, json (an array or one object), csv, tsv, parquet or text, by the suffix."""
    suffix = next(
        (suffix.lower() for suffix in reversed(path.suffixes) if suffix not in UNPACKED), ""
    )
    return _kind_of_json(path) if suffix == ".json" else KINDS.get(suffix, "text")


def _kind_of_json(path: Path) -> str:
    """Rows line by line, or else one value: an array of rows or a row."""
    try:
        with open_bytes(path) as file:
            lines = (line.strip() for line in iter(lambda: file.readline(BLOCK_BYTES << 6), b""))
            filled = (line for line in lines if line)
            first = next(filled, b"").removeprefix(codecs.BOM_UTF8).lstrip()
            is_object = first.startswith(b"{") and first.endswith(b"}")
            return "jsonl" if is_object and next(filled, b"").startswith(b"{") else "json"
    except (OSError, EOFError, zlib.error):
        return "text"  # the error is raised when it is read


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


def read_text(path: Path) -> Iterator[Document]:
    """A whole file as one document."""
    yield _text_blocks(path)


def _text_blocks(path: Path) -> Iterator[str]:
    # utf-8-sig drops the byte order mark that some editors put first.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    if path.name.lower().endswith(PACKED):
        what = f"{path} is packed in a way that is not read here"
        raise BadFile(what, "Unpack it, or pack it with gzip or zstd")
    with readable(path), open_bytes(path) as file:
        first = block = file.read(BLOCK_BYTES)
        utf_16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if b"\0" in first[:LOOKED_AT] and not utf_16:
            raise BadFile(f"{path} is not text (it has NUL bytes)", LEAVE_OUT.capitalize())
        while block:
            yield decoder.decode(block)
            block = file.read(BLOCK_BYTES)
        decoder.decode(b"", final=True)


def read_python(path: Path) -> Iterator[Document]:
    """A Python file in the encoding it declares (PEP 263); left out if it cannot be decoded."""
    with readable(path):
        content = read_bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return
    yield iter((text,))


@contextmanager
def readable(what: object) -> Iterator[None]:
    """A file that cannot be read to its end, or is not UTF-8, becomes a BadFile."""
    try:
        yield
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        found = f"{what} is not UTF-8 text ({error.reason})"
        raise BadFile(found, f"Convert it (iconv -t utf-8), or {LEAVE_OUT}") from error
    except MemoryError as error:
        found = f"a line or value of {what} does not fit in the memory, unpacked"
        raise BadFile(found, f"Look what is in it, or {LEAVE_OUT}") from error
    except (OSError, EOFError, zlib.error) as error:
        found = f"cannot read {what} ({getattr(error, 'strerror', None) or error})"
        raise BadFile(found, "Check that it is complete and that you may read it") from error
