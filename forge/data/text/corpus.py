"""Corpora: which files are read, in which order, and how each becomes documents."""

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
from forge.data.text.reading import BadFile, Document, all_of, kind, read_python, read_text
from forge.data.text.rows import read_csv, read_json, read_jsonl, read_parquet

COMPILED = "__pycache__"
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files in a fixed order and the way they are read, which `reader` names. masked: whether some
    tokens are no targets. render: what makes tokens of its documents, where they are conversations.
    together: how many documents are an example; 0 = they are running text. bad_rows: those that
    `read` leaves out.
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
        """Every document, in the order of the files. ValueError: a file is not as it should be."""
        for path in self.files:
            yield from self.read(path)

    @property
    def n_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def fingerprint(self, memo: Path | None = None) -> str:
        """Hash of what documents() yields, whatever the files are called."""
        skips = "" if self.bad_rows.most is None else ":skip"
        return fingerprint(self.files, reader=self.reader + skips, memo=memo)


def python_source(section: PythonSource) -> Corpus:
    """The .py files of this Python's standard library, without tests and installed packages."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = _walk(root, skip={*NOT_LIBRARY, COMPILED})
    files = tuple(path for path in found if path.suffix == ".py")
    if not files:
        what = f"data: no Python source under {root}; this Python ships without it."
        raise ValueError(f"{what} Use data=text data.path=... with text of your own.")
    name, reader = "python_source", "python"
    return Corpus(name=name, source=str(root), files=files, reader=reader, read=read_python)


def python_docs(section: PythonDocs) -> Corpus:
    """The help topics of `pydoc` and the docstrings of the same .py files, short ones left out."""
    files = python_source(PythonSource()).files
    name, source = "python_docs", sysconfig.get_paths()["stdlib"]
    return Corpus(name=name, source=source, files=files, reader=name, read=read_docs)


def text_files(section: Text) -> Corpus:
    """A file, all files of a directory (but hidden ones), or what a glob matches.

    JSON lines, a JSON array, CSV, TSV and Parquet hold a document a row; any other file is one
    document. ValueError, naming data.path: it is empty, or nothing is there.
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
    match kind(path):
        case "jsonl":
            return read_jsonl(path, text_field, bad)
        case "json":
            return read_json(path, text_field, bad)
        case "csv" | "tsv" as separated:
            return read_csv(path, text_field, "," if separated == "csv" else "\t", bad)
        case "parquet":
            return read_parquet(path, text_field, bad)
        case _:
            return read_text(path)


def matching(pattern: str) -> tuple[Path, ...]:
    """The files that data.path names, in order. ValueError: it is empty, or nothing is there."""
    if not pattern:
        fix = "Give a file, a directory or a glob: data.path=my.txt, data.path='texts/**/*.md'."
        raise ValueError(f"data.path is empty. {fix}")
    path, seen_from = Path(pattern).expanduser(), f"seen from {Path.cwd()}"
    if path.is_file():
        return (path,)
    refuse_broken([path])
    if path.is_dir():
        files = list(_walk(path, skip={COMPILED}, links=True))
        problem = "this directory holds no files. Give one that does, or a file or a glob."
    elif glob.has_magic(pattern):
        matches = {Path(name) for name in glob.glob(str(path), recursive=True)}
        before = str(path).partition("**")[0]
        if before != str(path) and not glob.has_magic(before):  # glob says of no folder that it
            denied: list[OSError] = []  # cannot look into it
            for _, subfolders, _ in os.walk(before or ".", onerror=denied.append):
                subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            refuse_unread(denied)
        refuse_broken(sorted(matches))
        files = sorted(path for path in matches if path.is_file())
        hint = "** reaches into folders: 'texts/**/*.txt'."
        problem = f"no file matches this glob, {seen_from}. {hint}"
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
    """Files below root in order, without hidden ones and folders in `skip`. links: to folders are
    followed too. ValueError: a link leads nowhere, or back to where it is in; a folder cannot be
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
    """Raises BadFile for the first of the folders that could not be listed, with their number."""
    if denied:
        more = f", nor can {len(denied) - 1} others" if denied[1:] else ""
        what = f"{denied[0].filename} cannot be looked into: {denied[0].strerror}{more}"
        raise BadFile(what, "Allow it, or name with a glob what is to be read")


def _refuse_circles(root: Path, folder: Path, subfolders: Sequence[str]) -> None:
    """Raises BadFile for a link to a folder that is being read."""
    for name in subfolders:
        link = folder / name
        if not link.is_symlink():
            continue
        inside = [folder, *folder.parents]
        above = {one.resolve() for one in inside[: inside.index(root) + 1]}
        if link.resolve() in above:
            what = f"{link} is a link to {link.resolve()}, a folder that it is in"
            raise BadFile(what, "Remove the link")


def is_broken(path: Path) -> bool:
    """Whether it is a link to what is not there."""
    return path.is_symlink() and not path.exists()


def refuse_broken(paths: Sequence[Path], *, of: int = 0) -> None:
    """Raises ValueError, naming those of some paths that are links to what is not there. of: how
    many files there are; 0 = these.
    """
    fix = "Put back what they lead to, or remove the links"
    bad = [
        BadFile(f"{path} is a link to {os.readlink(path)}, which is not there", fix)
        for path in filter(is_broken, paths)
    ]
    if bad:
        raise all_of(bad, of or len(paths))
