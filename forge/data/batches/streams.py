"""Text read during training: the order of samples, and positions to resume from.

A stream is divided into n parts, for any number of ranks and loader processes: sample k is sample k
// n of part k % n. In a part documents are taken in blocks, each block is permuted by a key, and
the tokens of the documents, each with its end of text, are cut at every seq_len. After its last
document a part begins its next epoch. So every sample is a pure function of data, seed and n.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from forge.data.batches.order import permute
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore

BLOCK_CHARACTERS = 1 << 25
"""Most characters of a block, for any number of documents."""
DIGEST_BYTES = 8
TOGETHER = 16  # documents tokenised in one call


class Unreadable(ValueError):
    """Text unreadable in the middle of training, or without a sample."""


class Position(NamedTuple):
    """A document of a part, in the order of the run.

    epoch, block: its block, starting at row `row` of unit number `unit` of the epoch. document: its
    index in the permuted block. token: number of tokens of the part before the document.
    """

    epoch: int = 0
    block: int = 0
    unit: int = 0
    row: int = 0
    document: int = 0
    token: int = 0


Positions = dict[int, Position]
"""Positions in the parts of a stream, by part number."""


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """A corpus read forward, as tokens.

    parts: the units of each part, files or pieces of files. read(unit, row): the text of each row
    of a unit from `row` on; raises Unreadable. held_out: digests of documents left out.
    """

    source: str
    fingerprint: str
    parts: tuple[tuple[int, ...], ...]
    read: Callable[[int, int], Iterator[str]]
    tokenizer: Tokenizer
    shuffle_buffer: int
    held_out: frozenset[bytes] = frozenset()
    counted: None = None  # all tokens are targets

    def opening(self, n_tokens: int) -> TokenStore:
        """Tokens from the beginning of the stream, for a prompt."""
        return Window(Reader(self, seq_len=n_tokens, seed=0, positions={}), 0)


def digest_of(text: str) -> bytes:
    """Digest to recognise a document."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


class Part:
    """One part of a stream, from a position on."""

    def __init__(
        self, text: Streamed, number: int, *, seq_len: int, seed: int | str, start: Position
    ) -> None:
        self.text, self.number, self.seq_len = text, number, seq_len
        self._key = f"{seed}/part{number}"
        self._open: tuple[tuple[int, int, int], Iterator[str]] | None = None
        self._documents = self._from(start)
        self._held: deque[tuple[Position, np.ndarray]] = deque()
        self._end = start.token

    def sample(self, number: int) -> np.ndarray:
        """The tokens of a sample, uint32 [seq_len + 1]; invalid for released samples."""
        start = number * self.seq_len
        stop = start + self.seq_len + 1
        self._read_to(stop)
        assert self._held[0][0].token <= start, (self._held[0][0], start)
        cut = [
            tokens[max(start - position.token, 0) : stop - position.token]
            for position, tokens in self._held
            if position.token < stop and position.token + len(tokens) > start
        ]
        return cut[0] if len(cut) == 1 else np.concatenate(cut)

    def release(self, number: int) -> Position:
        """Forget all tokens before a sample, and return the position to read the sample from."""
        start = number * self.seq_len
        self._read_to(start + 1)
        while self._held[0][0].token + len(self._held[0][1]) <= start:
            self._held.popleft()
        return self._held[0][0]

    def _read_to(self, stop: int) -> None:
        while self._end < stop:
            position, tokens = next(self._documents)
            self._held.append((position, tokens))
            self._end = position.token + len(tokens)

    def _from(self, at: Position) -> Iterator[tuple[Position, np.ndarray]]:
        """Yield each document from `at` on with its position, as tokens with an end of text."""
        tokenizer, epoch_start = self.text.tokenizer, None
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
                for index, ids in enumerate(tokenizer.encode_batch(together), start=first):
                    tokens = tokenizer.document(ids)
                    yield at._replace(document=index, token=token), tokens
                    token += len(tokens)
            if following.epoch > at.epoch and epoch_start is not None:
                self._check(token - epoch_start)
            at = following._replace(token=token)

    def _block(self, at: Position) -> tuple[list[str], Position]:
        """The texts of the block at a position, in the order of the corpus, and the next block's
        position.
        """
        units, unit, row = self._units(at.epoch), at.unit, at.row
        texts: list[str] = []
        budget = BLOCK_CHARACTERS
        while unit < len(units):
            for text in self._rows(at.epoch, unit, row, units[unit]):
                row += 1
                if text and digest_of(text) not in self.text.held_out:
                    texts.append(text)
                    budget -= len(text)
                    if len(texts) == self.text.shuffle_buffer or budget <= 0:
                        assert self._open is not None
                        self._open = (at.epoch, unit, row), self._open[1]
                        return texts, Position(at.epoch, at.block + 1, unit, row)
            unit, row = unit + 1, 0
        return texts, Position(at.epoch + 1)

    def _rows(self, epoch: int, unit: int, row: int, number: int) -> Iterator[str]:
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
        if tokens > self.seq_len:
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

    def read(self, sample: int) -> np.ndarray:
        """Tokens of a sample, uint32 [seq_len + 1]; any sample behind the last `finish`."""
        number, index = sample % len(self.text.parts), sample // len(self.text.parts)
        if number not in self._parts:
            start = self._starts.get(number, Position())
            if start.token > index * self.seq_len:  # saved by a run with longer sequences
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

    def __len__(self) -> int:
        return self.reader.seq_len + 1

    @property
    def fingerprint(self) -> str:
        return f"{self.reader.text.fingerprint} {self.sample}"

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.reader.read(self.sample)[start:stop]


def state_of(samples: int, positions: Mapping[str, Positions]) -> dict[str, Any]:
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
    return state_of(states[0]["samples"], positions)


def further(found: Mapping[str, Positions], more: Mapping[str, Positions]) -> dict[str, Positions]:
    """The furthest position of each part of each source."""
    merged = {name: dict(positions) for name, positions in found.items()}
    for name, positions in more.items():
        latest = merged.setdefault(name, {})
        for part, at in positions.items():
            if part not in latest or at.token > latest[part].token:
                latest[part] = at
    return merged
