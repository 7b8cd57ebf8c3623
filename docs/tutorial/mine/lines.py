"""A source of text: each line of the files of a folder is a document."""

from pathlib import Path

from forge.api import Corpus


def lines(folder: str) -> Corpus:
    files = tuple(sorted(Path(folder).glob("*.txt")))
    return Corpus(name="lines", source=folder, files=files, reader="lines", read=read)


def read(path: Path):
    for line in path.read_text(encoding="utf-8").splitlines():
        yield iter([line])
