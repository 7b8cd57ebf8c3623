"""A source of text: each paragraph of some files is a document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from forge.api import Corpus


def paragraphs(folder: str, shortest: int = 0) -> Corpus:
    """shortest: characters of a paragraph that is not left out."""
    return Corpus(
        name="paragraphs",
        source=folder,
        files=tuple(sorted(Path(folder).expanduser().glob("*.txt"))),
        reader=f"paragraphs of {shortest} or more",  # what decides, beside the files, what is read
        read=partial(read, shortest=shortest),
    )


def read(path: Path, shortest: int) -> Iterator[Iterator[str]]:
    """The blocks of each document: here one, a paragraph without what is around it."""
    for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
        if len(text := paragraph.strip()) >= max(shortest, 1):
            yield iter([text])
