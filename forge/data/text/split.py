"""Training and validation text, divided by a hash of the content.

A document goes to validation when the hash of its text is below the held-out share. So its split
never depends on other documents, and equal documents are in one split. A held-out number of
documents takes the lowest hashes. A document larger than a unit (64 KiB; in a small corpus 1/128 of
the corpus) is cut between lines into pieces of at most a unit, divided in place of the document.
One end-of-text closes every document in each split with a piece of the document. An empty split
gets the piece with the nearest hash.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from forge.config.data.text import HeldOut
from forge.config.numbers import counted
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus
from forge.data.text.reading import BadFile, Document, Example, Pair, all_of

MAX_UNIT = 1 << 16
MIN_UNIT = 1 << 8
UNITS_IN_SMALL_CORPUS = 128
HASH_RANGE = 1 << 64


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, consecutive lines of a large one, or half of a pair; `last` at the end of a
    document. counted: whether its tokens are targets. conversation: the source, for a conversation.
    liked: whether the example is desirable.
    """

    text: str
    n_bytes: int
    digest: int
    last: bool
    counted: bool = True
    conversation: Conversation | None = None
    liked: bool = False


@dataclass(frozen=True, kw_only=True)
class Split:
    """Division of the pieces of one corpus: digests below `threshold` are validation, and so are
    the last files.
    """

    corpus: Corpus
    unit: int
    threshold: int
    n_bytes: int
    held_files: int = 0

    def pieces(self) -> Iterator[tuple[Piece, bool]]:
        """Yield (piece, whether it is validation) in the order of the corpus."""
        for number, path in enumerate(self.corpus.files):
            for piece in pieces(self.corpus.read(path), self.unit):
                yield piece, self.holds_out(piece, number)

    def holds_out(self, piece: Piece, file: int) -> bool:
        """Whether a piece of file number `file` is validation."""
        in_last = file >= len(self.corpus.files) - self.held_files
        return in_last or piece.digest < self.threshold


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """Text for training a tokenizer: the training text of all corpora of a run."""

    splits: tuple[Split, ...]

    def sample(self, max_bytes: int, document_characters: int = 0) -> Iterator[str]:
        """All pieces, or an even sample of at most `max_bytes` in all. document_characters: at most
        so many first ones of each document; 0 = all.
        """
        share = min(1.0, max_bytes / sum(split.n_bytes for split in self.splits))
        seen = sampled = before = 0  # before: characters of the document in earlier pieces
        for piece, is_validation in chain.from_iterable(s.pieces() for s in self.splits):
            seen += piece.n_bytes
            text = piece.text[: document_characters - before] if document_characters else piece.text
            within = not document_characters or before < document_characters
            before = 0 if piece.last else before + len(piece.text)
            if not is_validation and within and sampled + piece.n_bytes <= share * seen:
                sampled += piece.n_bytes
                yield text


class RandomText:
    """Placeholder for a text of tokens drawn by chance: a trainable tokenizer has all its ids, and
    learns nothing.
    """

    def sample(self, max_bytes: int, document_characters: int = 0) -> Iterator[str]:
        """No piece."""
        return iter(())


class Lowest:
    """The `most` lowest distinct numbers added."""

    def __init__(self, most: int) -> None:
        self.most, self.heap, self.kept = most, [], set()

    def add(self, number: int) -> None:
        if number in self.kept or not self.most:
            return
        heapq.heappush(self.heap, -number)
        self.kept.add(number)
        if len(self.heap) > self.most:
            self.kept.remove(-heapq.heappop(self.heap))

    @property
    def greatest(self) -> int:
        return -self.heap[0]


def split_corpus(corpus: Corpus, held_out: HeldOut) -> Split:
    """Read the corpus once and divide it.

    ValueError: the corpus is empty or too small to divide, or files cannot be read (all are named).
    """
    unit = unit_of(corpus.n_bytes)
    n_bytes, least, greatest, lowest = 0, HASH_RANGE, -1, Lowest(held_out.documents)
    bad: list[BadFile] = []
    for path in corpus.files:
        try:
            for piece in pieces(corpus.read(path), unit):
                n_bytes += piece.n_bytes
                least, greatest = min(least, piece.digest), max(greatest, piece.digest)
                lowest.add(piece.digest)
        except BadFile as error:
            bad.append(error)
    if bad:
        raise all_of(bad, len(corpus.files))
    if n_bytes == 0:
        problem = f"no text in it ({len(corpus.files)} file(s), all empty)"
        if number := corpus.bad_rows.number:
            problem = f"none of its rows can be read, of which {number:,} are left out"
            problem += f" ({corpus.bad_rows.first[0]})"
        raise ValueError(f"data.path = {corpus.source}: {problem}. Give some text to train on.")
    divided = partial(Split, corpus=corpus, unit=unit, n_bytes=n_bytes)
    if held_out.files:
        return divided(threshold=0, held_files=_held_files(held_out.files, len(corpus.files)))
    if held_out.share == 1 or not held_out:
        return divided(threshold=HASH_RANGE if held_out else 0)
    if least == greatest:
        problem = f"{n_bytes:,} bytes of text are too few to hold some out for validation"
        hint = f"Give more text, at least {2 * MIN_UNIT} bytes or two different documents."
        raise ValueError(f"data.path = {corpus.source}: {problem}. {hint}")
    if held_out.documents:
        return divided(threshold=_above(lowest, greatest))
    return divided(threshold=min(max(round(held_out.share * HASH_RANGE), least + 1), greatest))


def _above(lowest: Lowest, greatest: int) -> int:
    """The threshold of the lowest digests. ValueError: no document would be left to train on."""
    if lowest.greatest < greatest:
        return lowest.greatest + 1
    problem = f"it has {len(lowest.heap):,} documents, and some must be left to train on"
    raise ValueError(f"data.val_documents = {lowest.most}: {problem}. Hold out fewer.")


def _held_files(number: int, files: int) -> int:
    """The number of files to hold out. ValueError: none would be left to train on."""
    if number < files:
        return number
    problem = f"there {'is' if files == 1 else 'are'} {counted(files, 'file')}"
    hint = "Hold out fewer, or a share: data.val_files=0"
    raise ValueError(f"data.val_files = {number}: {problem}, and one must be left. {hint}.")


def unit_of(corpus_bytes: int) -> int:
    """Characters of the largest piece: at most 1/128 of the corpus, 256 to 65,536.

    A power of two, so a growing corpus is rarely cut again, and a corpus above 8 MiB never.
    """
    share = max(corpus_bytes // UNITS_IN_SMALL_CORPUS, 1)
    return min(max(1 << (share.bit_length() - 1), MIN_UNIT), MAX_UNIT)


def pieces(documents: Iterable[Document], unit: int) -> Iterator[Piece]:
    for document in documents:
        if isinstance(document, Pair | Conversation | Example):
            yield from _whole(document)
            continue
        for text, last in cut_text(document, unit):
            encoded = text.encode()
            yield Piece(text=text, n_bytes=len(encoded), digest=_digest(encoded), last=last)


def _whole(document: Pair | Conversation | Example) -> Iterator[Piece]:
    """Yield the pieces of an indivisible document, all with one hash, on one side."""
    example = document if isinstance(document, Example) else Example((document,))
    digest = _digest(content_of(example))
    for part in example.documents:
        shared: dict[str, Any] = {"digest": digest, "liked": bool(example.liked)}
        if isinstance(part, Conversation):
            size = len(part.text.encode())
            yield Piece(text=part.text, n_bytes=size, last=True, conversation=part, **shared)
            continue
        for text, last in ((part.prompt, False), (part.response, True)):
            size = len(text.encode())
            yield Piece(text=text, n_bytes=size, last=last, counted=last, **shared)


def content_of(document: Pair | Conversation | Example) -> bytes:
    """All of a document but its place, for hashing; of an example the documents deciding its
    split.
    """
    if isinstance(document, Example):
        return b"\0".join(content_of(part) for part in document.own)
    return "\0".join(document).encode() if isinstance(document, Pair) else document.content


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def cut_text(blocks: Iterator[str], unit: int) -> Iterator[tuple[str, bool]]:
    """Text in pieces of at most `unit` characters, cut after a line, else a space, else anywhere.

    Block boundaries make no difference. Yields (piece, whether it is the last).
    """
    pending = ""
    for block in blocks:
        pending += block
        start = 0
        while len(pending) - start > unit:
            end = _cut_before(pending, start, start + unit)
            yield pending[start:end], False
            start = end
        pending = pending[start:]
    if pending:
        yield pending, True


def _cut_before(text: str, start: int, end: int) -> int:
    for separator in ("\n", " "):
        index = text.rfind(separator, start, end)
        if index >= 0:
            return index + 1
    return end
