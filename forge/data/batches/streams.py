"""Text read during training: the order of samples, and positions to resume from.

A stream is divided into n parts, for any number of ranks and loader processes: sample k is sample k
// n of part k % n. In a part documents are taken in blocks, each block is permuted by a key, and
the tokens of the documents, each with its end of text, are cut at every seq_len, or whole documents
are packed into rows (`stream_rows`). After its last document a part begins its next epoch. So every
sample is a pure function of data, seed and n.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge.data.batches.order import permute
from forge.data.batches.stream_rows import Packing, Position, Rows, Tokens, Unreadable
from forge.data.text.conversation import Conversation
from forge.data.text.reading import Example, Pair
from forge.data.text.split import content_of
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore

BLOCK_CHARACTERS = 1 << 25
"""Most characters of a block, for any number of documents."""
CUT = Packing()  # at every seq_len
DIGEST_BYTES = 8
TOGETHER = 16  # documents tokenised in one call
StreamDocument = str | Pair | Conversation | Example
Read = Iterator[StreamDocument | None]
"""The document of each row; None for a row left out."""
Encode = Callable[[Sequence[Any]], list[Tokens]]
"""Documents -> the tokens of each, with marks."""
Positions = dict[int, Position]
"""Positions in the parts of a stream, by part number."""


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A corpus read forward, as tokens.

    parts: the units of each part, files or pieces of files. read(unit, row): the rows of a unit
    from `row` on; raises Unreadable. held_out: digests of documents left out. encode: makes tokens
    and marks where not all tokens are targets; None = the tokenizer encodes texts. packing: of
    documents in samples. together: number of documents in an example; 0 = running text.
    """

    source: str
    fingerprint: str
    parts: tuple[tuple[int, ...], ...]
    read: Callable[[int, int], Read]
    tokenizer: Tokenizer
    shuffle_buffer: int
    held_out: frozenset[bytes] = frozenset()
    encode: Encode | None = None
    packing: Packing = CUT
    together: int = 0

    @property
    def masked(self) -> bool:
        """Whether some tokens do not count as targets."""
        return self.encode is not None

    def encoded(self, documents: Sequence[Any]) -> Iterator[Tokens]:
        """Yield the tokens of each document."""
        if self.encode is not None:
            yield from self.encode(documents)
            return
        for ids in self.tokenizer.encode_batch(documents):
            yield Tokens(self.tokenizer.document(ids), None)

    def opening(self, n_tokens: int) -> TokenStore:
        """Tokens from the beginning of the stream, for a prompt."""
        return Window(Reader(self, seq_len=n_tokens, seed=0, positions={}), 0)


def digest_of(document: StreamDocument) -> bytes:
    """Digest to recognise a document."""
    content = document.encode() if isinstance(document, str) else content_of(document)
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def n_bytes_of(document: StreamDocument) -> int:
    """Bytes of the text of a document."""
    if isinstance(document, Example):
        return sum(map(n_bytes_of, document.documents))
    if isinstance(document, Pair):
        return sum(len(text.encode()) for text in document)
    return len((document if isinstance(document, str) else document.text).encode())


def _size(document: StreamDocument) -> int:
    """Characters of a text, or bytes of another document."""
    if isinstance(document, Example):
        return sum(map(_size, document.documents))
    return len(document) if isinstance(document, str) else len(content_of(document))


class Part:
    """One part of a stream, from a position on."""

    def __init__(
        self, text: Streamed, number: int, *, seq_len: int, seed: int | str, start: Position
    ) -> None:
        self.text, self.number, self.seq_len = text, number, seq_len
        self._key = f"{seed}/part{number}"
        self._open: tuple[tuple[int, int, int], Read] | None = None
        self._documents = self._from(start)
        self._held: deque[tuple[Position, Tokens]] = deque()
        self._end = start.token
        self._rows: Rows | None = None
        if text.packing.whole:
            options: Any = {"seq_len": seq_len, "first": start.token, "source": text.source}
            self._rows = Rows(self._documents, text.packing, **options)

    def sample(self, number: int) -> Tokens:
        """The tokens of a sample, seq_len + 1, or fewer of whole documents; invalid for released
        samples.
        """
        if self._rows is not None:
            return self._rows.row(number)
        start = number * self.seq_len
        stop = start + self.seq_len + 1
        self._read_to(stop)
        assert self._held[0][0].token <= start, (self._held[0][0], start)
        cut = [
            document.cut(max(start - position.token, 0), stop - position.token)
            for position, document in self._held
            if position.token < stop and position.token + len(document.tokens) > start
        ]
        return Tokens.joined(cut)

    def release(self, number: int) -> Position:
        """Forget all tokens before a sample, and return the position to read the sample from."""
        if self._rows is not None:
            return self._rows.release(number)
        start = number * self.seq_len
        self._read_to(start + 1)
        while self._held[0][0].token + len(self._held[0][1].tokens) <= start:
            self._held.popleft()
        return self._held[0][0]

    def _read_to(self, stop: int) -> None:
        while self._end < stop:
            position, document = next(self._documents)
            self._held.append((position, document))
            self._end = position.token + len(document.tokens)

    def _from(self, at: Position) -> Iterator[tuple[Position, Tokens]]:
        """Yield each document from `at` on with its position, as tokens with an end of text."""
        epoch_start = None
        while True:
            texts, following = self._block(at)
            if at.block == at.document == 0:
                epoch_start = at.token
            order: Sequence[int] = range(len(texts))
            if texts and self.text.shuffle_buffer > 1:
                key = (f"{self._key}/{at.epoch}", at.block)
                order = permute(np.arange(len(texts)), len(texts), key).tolist()
            token = at.token
            for first in range(at.document, len(texts), TOGETHER):
                together = [texts[index] for index in order[first : first + TOGETHER]]
                for index, document in enumerate(self.text.encoded(together), start=first):
                    yield at._replace(document=index, token=token), document
                    token += len(document.tokens)
            if following.epoch > at.epoch and epoch_start is not None:
                self._check(token - epoch_start)
            at = following._replace(token=token)

    def _block(self, at: Position) -> tuple[list[StreamDocument], Position]:
        """The documents of the block at a position, in the order of the corpus, and the position
        of the next block.
        """
        units, unit, row = self._units(at.epoch), at.unit, at.row
        texts: list[StreamDocument] = []
        budget = BLOCK_CHARACTERS
        while unit < len(units):
            for text in self._unit(at.epoch, unit, row, units[unit]):
                row += 1
                if text and digest_of(text) not in self.text.held_out:
                    texts.append(text)
                    budget -= _size(text)
                    if len(texts) == self.text.shuffle_buffer or budget <= 0:
                        assert self._open is not None
                        self._open = (at.epoch, unit, row), self._open[1]
                        return texts, Position(at.epoch, at.block + 1, unit, row)
            unit, row = unit + 1, 0
        return texts, Position(at.epoch + 1)

    def _unit(self, epoch: int, unit: int, row: int, number: int) -> Read:
        """The rows of a unit from `row` on, continuing an open iterator if at the same row."""
        if self._open is None or self._open[0] != (epoch, unit, row):
            self._open = (epoch, unit, row), self.text.read(number, row)
        return self._open[1]

    def _units(self, epoch: int) -> Sequence[int]:
        units = self.text.parts[self.number]
        if self.text.shuffle_buffer == 1:
            return units
        order = permute(np.arange(len(units)), len(units), (f"{self._key}/units", epoch))
        return [units[index] for index in order.tolist()]

    def _check(self, tokens: int) -> None:
        """Raise Unreadable for an epoch without a whole sample."""
        if tokens > (0 if self.text.packing.whole else self.seq_len):
            return
        parts = len(self.text.parts)
        which = f"part {self.number + 1} of {parts} of {self.text.source}" if parts > 1 else ""
        which = which or self.text.source
        fewer = "data.stream_parts=1, or " if parts > 1 else ""
        if not tokens:
            raise Unreadable(f"data: there is no text in {which}. Give {fewer}more text.")
        fault = f"{which} has {tokens:,} tokens, less than one sample of seq_len + 1"
        hint = f"Set {fewer}train.seq_len={max(tokens - 1, 1)} or less, or give more text"
        raise Unreadable(f"train.seq_len = {self.seq_len}: {fault}. {hint}.")


class Reader:
    """The forward reading of a stream in one loader process, limited to the parts requested."""

    def __init__(
        self, text: Streamed, *, seq_len: int, seed: int | str, positions: Mapping[int, Position]
    ) -> None:
        self.text, self.seq_len, self.seed = text, seq_len, seed
        self._starts = positions
        self._parts: dict[int, Part] = {}
        self._behind: dict[int, int] = {}  # index past the last sample read

    def read(self, sample: int) -> Tokens:
        """Tokens of a sample; any sample after the last `finish`."""
        number, index = sample % len(self.text.parts), sample // len(self.text.parts)
        if number not in self._parts:
            start = self._starts.get(number, Position())
            step = 1 if self.text.packing.whole else self.seq_len
            if start.token > index * step:  # saved by a run with longer sequences
                start = Position()
            self._parts[number] = Part(
                self.text, number, seq_len=self.seq_len, seed=self.seed, start=start
            )
        tokens = self._parts[number].sample(index)
        self._behind[number] = max(self._behind.get(number, 0), index + 1)
        return tokens

    def finish(self) -> Positions:
        """Positions to continue from, of the parts read since the last call; earlier samples are
        never read again.
        """
        positions = {
            number: self._parts[number].release(sample) for number, sample in self._behind.items()
        }
        self._behind.clear()
        return positions


class Window(TokenStore):
    """A sample of a stream, read on demand."""

    def __init__(self, reader: Reader, sample: int) -> None:
        self.reader, self.sample = reader, sample
        if reader.text.masked:
            self.counted = Marks(reader, sample)

    def __len__(self) -> int:
        if self.reader.text.packing.whole:
            return len(self.reader.read(self.sample).tokens)
        return self.reader.seq_len + 1

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The range of each document of an example; of running text the whole sample."""
        if self.reader.text.together:
            return self.reader.read(self.sample).pieces
        return [(0, len(self))]

    @property
    def fingerprint(self) -> str:
        return f"{self.reader.text.fingerprint} {self.sample}"

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.reader.read(self.sample).tokens[start:stop]


class Marks(Window):
    """The marks of the tokens of a sample."""

    def __init__(self, reader: Reader, sample: int) -> None:
        self.reader, self.sample = reader, sample

    def read(self, start: int, stop: int) -> np.ndarray:
        marks = self.reader.read(self.sample).marks
        assert marks is not None
        return marks[start:stop]


def data_position(samples: int, positions: Mapping[str, Positions]) -> dict[str, Any]:
    """The data position saved in a checkpoint: plain values."""
    streams = {
        name: {
            str(part): " ".join(map(str, position)) for part, position in sorted(by_part.items())
        }
        for name, by_part in positions.items()
    }
    return {"samples": samples} | ({"streams": streams} if streams else {})


def positions_of(state: Mapping[str, Any]) -> dict[str, Positions]:
    return {
        name: {
            int(part): Position(*map(int, position.split())) for part, position in by_part.items()
        }
        for name, by_part in state.get("streams", {}).items()
    }


def joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The merged state of all ranks at the same step: each part's position on the rank reading the
    part.
    """
    positions: dict[str, Positions] = {}
    for state in states:
        positions = further(positions, positions_of(state))
    return data_position(states[0]["samples"], positions)


def further(found: Mapping[str, Positions], more: Mapping[str, Positions]) -> dict[str, Positions]:
    """The furthest position of each part of each source."""
    merged = {name: dict(positions) for name, positions in found.items()}
    for name, positions in more.items():
        latest = merged.setdefault(name, {})
        for part, at in positions.items():
            if part not in latest or at.token > latest[part].token:
                latest[part] = at
    return merged
