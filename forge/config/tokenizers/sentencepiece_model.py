"""SentencePiece .model files: the pieces, and the division of text into pieces.

The file is a protocol buffer (google/sentencepiece, src/sentencepiece_model.proto); the few fields
used here are read without the library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.regular import read_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A piece of text with its score; kind: NORMAL, UNKNOWN, CONTROL, ..."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """A model's pieces and options. unk, bos, eos: ids; -1 = none. charsmap: the normalisation of
    characters.
    """

    pieces: tuple[Piece, ...]
    model_type: str
    byte_fallback: bool
    space_is_suffix: bool
    unk: int
    bos: int
    eos: int
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    def named(self, index: int) -> str | None:
        """The text of a piece by its id."""
        return self.pieces[index].text if 0 <= index < len(self.pieces) else None


def read_model(path: Path) -> SentencePieceModel:
    """Read a model. ValueError: no SentencePiece model."""
    try:
        return _model(read_bytes(path))
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise ValueError("it is not a SentencePiece model") from error


def _model(content: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == 1:
            entry = dict(_fields(value))
            (score,) = struct.unpack("<f", entry.get(2, bytes(4)))
            text = bytes(entry[1]).decode() if 1 in entry else ""
            pieces.append(Piece(text=text, score=score, kind=int(entry.get(3, NORMAL))))
        elif number in (2, 3):
            (trainer if number == 2 else normalizer).update(_fields(value))
    if not pieces or not any(piece.text for piece in pieces):
        raise ValueError("no pieces")
    return SentencePieceModel(
        pieces=tuple(pieces),
        model_type=MODEL_TYPES[int(trainer.get(3, 1))],
        byte_fallback=bool(trainer.get(35, 0)),
        space_is_suffix=bool(trainer.get(24, 0)),
        unk=_signed(int(trainer.get(40, 0))),
        bos=_signed(int(trainer.get(41, 1))),
        eos=_signed(int(trainer.get(42, 2))),
        charsmap=bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a message: an int, or bytes."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(content, position)
        else:
            size = {1: 8, 5: 4}.get(wire, -1)
        if not number or size < 0 or position + size > len(content):
            raise ValueError("no message")
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError("no number")
