"""Corpora: the files, their order, and a reader of documents for each kind of file."""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from forge.config.data.text import PythonDocs, PythonSource, Text
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Renders
from forge.data.text.fingerprint import fingerprint
from forge.data.text.python_docs import read_docs
from forge.data.text.reading import (
    BadFile,
    Document,
    all_of,
    format_by_suffix,
    read_python,
    text_document,
)
from forge.data.text.rows import json_documents, read_csv, read_jsonl, read_parquet

COMPILED = "__pycache__"
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files in a fixed order and their `reader`. masked: whether some tokens are no targets.
    render: makes tokens of documents, where these are conversations. together: number of documents
    in an example; 0 = running text. bad_rows: rows left out by `read`.
    """

    name: str
    source: str
    files: tuple[Path, ...]
    reader: str
    read: Callable[[Path], Iterator[Document]]
    masked: bool = False
    render: Renders | None = None
    together: int = 0
    bad_rows: BadRows = field(default_factory=BadRows)

    def documents(self) -> Iterator[Document]:
        """Every document, in the order of the files. ValueError: a file is malformed."""
        for path in self.files:
            yield from self.read(path)

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self, memo: Path | None = None) -> str:
        """Hash of the content of documents(), independent of file names."""
        skips = "" if self.bad_rows.most is None else ":skip"
        return fingerprint(self.files, reader=self.reader + skips, memo=memo)


def python_source(section: PythonSource) -> Corpus:
    """The .py files of this Python's standard library, without tests and installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = _walk(root, skip={*NOT_LIBRARY, COMPILED})
    files = tuple(path for path in paths if path.suffix == ".py")
    if not files:
        message = f"data: no Python source under {root}; this Python ships without it."
        raise ValueError(f"{message} Use data=text data.path=... with text of your own.")
    name, reader = "python_source", "python"
    return Corpus(name=name, source=str(root), files=files, reader=reader, read=read_python)


def python_docs(section: PythonDocs) -> Corpus:
    """The help topics of `pydoc` and the docstrings of the same .py files, short ones left out."""
    files = python_source(PythonSource()).files
    name, source = "python_docs", sysconfig.get_paths()["stdlib"]
    return Corpus(name=name, source=source, files=files, reader=name, read=read_docs)


def text_files(section: Text) -> Corpus:
    """A file, all files of a directory (but hidden ones), or the matches of a glob.

    JSON lines, a JSON array, CSV, TSV and Parquet hold a document a row; any other file is one
    document. ValueError, naming data.path: the option is empty, or no file matches.
    """
    bad = BadRows.of(section)
    return Corpus(
        name="text",
        source=section.path,
        files=matching(section.path),
        reader=f"text:{section.text_field}",
        read=partial(_read_by_kind, text_field=section.text_field, bad=bad),
        bad_rows=bad,
    )


def _read_by_kind(path: Path, *, text_field: str, bad: BadRows = REFUSED) -> Iterator[Document]:
    bad.begin(path)
    match format_by_suffix(path):
        case "jsonl":
            return read_jsonl(path, text_field, bad)
        case "json":
            return json_documents(path, text_field, bad)
        case "csv" | "tsv" as separated:
            return read_csv(path, text_field, "," if separated == "csv" else "\t", bad)
        case "parquet":
            return read_parquet(path, text_field, bad)
        case _:
            return text_document(path)


def matching(pattern: str) -> tuple[Path, ...]:
    """Files matching data.path, in order. ValueError: the pattern is empty, or no file matches."""
    if not pattern:
        hint = "Give a file, a directory or a glob: data.path=my.txt, data.path='texts/**/*.md'."
        raise ValueError(f"data.path is empty. {hint}")
    path, seen_from = Path(pattern).expanduser(), f"seen from {Path.cwd()}"
    if path.is_file():
        return (path,)
    refuse_broken([path])
    if path.is_dir():
        files = list(_walk(path, skip={COMPILED}, links=True))
        problem = "this directory holds no files. Give one that does, or a file or a glob."
    elif glob.has_magic(pattern):
        matches = {Path(name) for name in glob.glob(str(path), recursive=True)}
        prefix = str(path).partition("**")[0]
        if prefix != str(path) and not glob.has_magic(prefix):  # glob skips denied folders silently
            denied: list[OSError] = []
            for _, subfolders, _ in os.walk(prefix or ".", onerror=denied.append):
                subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            refuse_unread(denied)
        refuse_broken(sorted(matches))
        files = sorted(path for path in matches if path.is_file())
        advice = "** reaches into folders: 'texts/**/*.txt'."
        problem = f"no file matches this glob, {seen_from}. {advice}"
    elif path.exists():
        files = []
        problem = "it is a pipe, a socket or a device. Write its content to a file, and give that."
    else:
        files = []
        problem = f"no such file or directory, {seen_from}. Give a file, a directory or a glob."
    if not files:
        raise ValueError(f"data.path = {pattern}: {problem}")
    return tuple(files)


def _walk(root: Path, *, skip: set[str], links: bool = False) -> Iterator[Path]:
    """Files below root in order, without hidden ones and folders in `skip`. links: follow links to
    folders too. ValueError: a link is broken, or leads back to a folder above; a folder cannot be
    read.
    """
    broken: list[Path] = []
    denied: list[OSError] = []
    number = 0
    for folder, subfolders, names in os.walk(root, onerror=denied.append, followlinks=links):
        shown = (name for name in subfolders if name not in skip and not name.startswith("."))
        subfolders[:] = sorted(shown)
        files = [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        if links:
            broken, number = broken + list(filter(is_broken, files)), number + len(files)
            _refuse_circles(root, Path(folder), subfolders)
        yield from (path for path in files if path.is_file())
    if links:
        refuse_unread(denied)
    refuse_broken(broken, of=number)


def refuse_unread(denied: Sequence[OSError]) -> None:
    """Raise BadFile for the first folder denied to listing, with the number of further folders."""
    if denied:
        remainder = f", nor can {len(denied) - 1} others" if denied[1:] else ""
        message = f"{denied[0].filename} cannot be looked into: {denied[0].strerror}{remainder}"
        raise BadFile(message, "Allow it, or name with a glob what is to be read")


def _refuse_circles(root: Path, folder: Path, subfolders: Sequence[str]) -> None:
    """Raise BadFile for a link to a folder already being read."""
    for name in subfolders:
        link = folder / name
        if not link.is_symlink():
            continue
        inside = [folder, *folder.parents]
        above = {parent.resolve() for parent in inside[: inside.index(root) + 1]}
        if link.resolve() in above:
            message = f"{link} is a link to {link.resolve()}, a folder that it is in"
            raise BadFile(message, "Remove the link")


def is_broken(path: Path) -> bool:
    """Whether `path` is a link without a target."""
    return path.is_symlink() and not path.exists()


def refuse_broken(paths: Sequence[Path], *, of: int = 0) -> None:
    """Raise ValueError, naming all links among `paths` without a target. of: total number of files;
    0 = the number of paths.
    """
    hint = "Put back what they lead to, or remove the links"
    bad = [
        BadFile(f"{path} is a link to {os.readlink(path)}, which is not there", hint)
        for path in filter(is_broken, paths)
    ]
    if bad:
        raise all_of(bad, of or len(paths))
