"""Corpora: which files are read, in which order, and how each becomes documents."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forge.config.data import PythonSource, Text
from forge.data.fingerprint import fingerprint
from forge.data.reading import Document, kind, read_python, read_text
from forge.data.rows import read_csv, read_json, read_jsonl, read_parquet

NOT_LIBRARY = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "__pycache__",
}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files in a fixed order and the way they are read; nothing is held in memory.

    `reader` names that way: with the content of the files it determines the documents.
    """

    name: str
    source: str
    files: tuple[Path, ...]
    reader: str
    read: Callable[[Path], Iterator[Document]]

    def documents(self) -> Iterator[Document]:
        """Every document, in the order of the files. ValueError: a file is not what it should be."""
        for path in self.files:
            yield from self.read(path)

    @property
    def n_bytes(self) -> int:
        """Bytes of the files on disk."""
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self, memo: Path | None = None) -> str:
        """Hash of what documents() yields, whatever the files are called.

        `memo`: a directory that remembers the hashes of large corpora by path, size and time of
        change.
        """
        return fingerprint(self.files, reader=self.reader, memo=memo)


def python_source(section: PythonSource) -> Corpus:
    """The .py files of the standard library of this Python, one document each; tests and installed
    packages left out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = tuple(path for path in _walk(root, skip=NOT_LIBRARY) if path.suffix == ".py")
    if not files:
        raise ValueError(
            f"data: no Python source under {root}; this Python ships without it. Use data=text data.path=... with text of your own."
        )
    return Corpus(
        name="python_source", source=str(root), files=files, reader="python", read=read_python
    )


def text_files(section: Text) -> Corpus:
    """A file, all files of a directory (hidden ones left out), or what a glob matches.

    JSON lines, a JSON array, CSV, TSV and Parquet hold a document a row, any other file is one
    document; all but Parquet may be packed (.gz). ValueError, naming data.path: it is empty, or
    nothing is there.
    """
    files = tuple(_matches(section.path))
    read = partial(_read_by_kind, text_field=section.text_field)
    return Corpus(
        name="text",
        source=section.path,
        files=files,
        reader=f"text:{section.text_field}",
        read=read,
    )


def _read_by_kind(path: Path, *, text_field: str) -> Iterator[Document]:
    match kind(path):
        case "jsonl":
            return read_jsonl(path, text_field)
        case "json":
            return read_json(path, text_field)
        case "csv" | "tsv" as separated:
            return read_csv(path, text_field, "," if separated == "csv" else "\t")
        case "parquet":
            return read_parquet(path, text_field)
        case _:
            return read_text(path)


def _matches(pattern: str) -> list[Path]:
    if not pattern:
        raise ValueError(
            "data.path is empty. Give a file, a directory or a glob: data.path=my.txt, data.path='texts/**/*.md'."
        )
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = list(_walk(path, skip={"__pycache__"}))
        if not files:
            raise ValueError(
                f"data.path = {pattern}: this directory holds no files. Give one that does, or a file or a glob."
            )
        return files
    if glob.has_magic(pattern):
        files = sorted(
            {Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name)}
        )
        if not files:
            raise ValueError(
                f"data.path = {pattern}: no file matches this glob, seen from {Path.cwd()}. ** reaches into folders: 'texts/**/*.txt'."
            )
        return files
    raise ValueError(
        f"data.path = {pattern}: no such file or directory, seen from {Path.cwd()}. Give a file, a directory or a glob."
    )


def _walk(root: Path, *, skip: set[str]) -> Iterator[Path]:
    """Files below root in the order of their names; hidden ones and folders named in `skip` are
    left out.
    """
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if name not in skip and not name.startswith(".")
        )
        files = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in files if path.is_file())
