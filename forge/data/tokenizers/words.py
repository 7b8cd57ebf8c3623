"""Ids of text from the ids of its words, each encoded once by the tokenizers library.

A byte-level BPE cuts text into words by a regular expression and encodes each by itself, and text
has the same words over and over. Python finds the words of ASCII as the library does; text with
other letters is handed to the library, from a certain end of a word before a space to the next.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.config.tokenizers.tiktoken_ranks import ENCODINGS, ENDINGS
from forge.data.tokenizers.byte_text import ByteText

if TYPE_CHECKING:
    import tokenizers

MOST, LONGEST = 1 << 18, 64  # remembered words, and letters of a remembered word
SPACE, OTHER = r"[\t-\r ]", r"[^\t-\r A-Za-z0-9]"
SPACES = rf"{SPACE}+(?![^\t-\r ])|{SPACE}+"
GPT2 = rf"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?{OTHER}+|{SPACES}"
CL100K = (
    rf"{ENDINGS}|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{{1,3}}| ?{OTHER}+[\r\n]*"
    rf"|{SPACE}*[\r\n]+|{SPACES}"
)
NANOCHAT = (
    rf"'(?i:[sdmt]|ll|ve|re)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{{1,2}}| ?{OTHER}+[\r\n]*"
    rf"|{SPACE}*[\r\n]|{SPACES}"
)
IN_ASCII = {
    ENCODINGS["gpt2"].pattern: GPT2,
    ENCODINGS["cl100k"].pattern: CL100K,
    ENCODINGS["qwen"].pattern: CL100K.replace("{1,3}", ""),
    ENCODINGS["nanochat"].pattern: NANOCHAT,
}
"""Patterns of words for ASCII text; Python's own \\s has four more characters."""
CHUNKS = re.compile(rf"{SPACE}*[^\t-\r ]+|{SPACE}+").findall
Find = Callable[[str], list[str]]


class Words:
    """The ids of words met before; at most MOST words in memory."""

    def __init__(self, raw: tokenizers.Tokenizer | ByteText, find: Find) -> None:
        """find: divides ASCII text into words."""
        self._raw, self._find = raw, find
        self._known: dict[str, bytes] = {}

    @staticmethod
    def of(raw: tokenizers.Tokenizer | ByteText) -> Words | None:
        """The words of a tokenizer; None where the pattern of words is unknown."""
        pattern = IN_ASCII.get(_word_pattern(json.loads(raw.to_str())) or "")
        return Words(raw, re.compile(pattern).findall) if pattern else None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of several texts, equal to the library's: uint32 arrays."""
        words = [list(self._words(text)) for text in texts]
        needed = set(chain.from_iterable(words))
        new = needed.difference(self._known)
        if len(self._known) + len(new) > MOST:
            self._known.clear()
            new = needed
        remembered = self._known
        batch = list(new)
        for word, encoding in zip(
            batch, self._raw.encode_batch_fast(batch, add_special_tokens=False), strict=True
        ):
            remembered[word] = array("I", encoding.ids).tobytes()
        ids = [
            np.frombuffer(b"".join(map(remembered.__getitem__, text_words)), np.uintc)
            for text_words in words
        ]
        for word in batch:
            if len(word) > LONGEST:
                del remembered[word]
        return ids

    def _words(self, text: str) -> Iterator[str]:
        if text.isascii():
            return iter(self._find(text))
        runs = (self._find(run) if run.isascii() else (run,) for run in _runs(text))
        return chain.from_iterable(runs)


def _runs(text: str) -> Iterator[str]:
    """Divide text into runs without a common word: runs of ASCII, or the shortest with other
    letters.
    """
    run: list[str] = []
    plain = True  # whether the run is of ASCII
    for chunk in CHUNKS(text):
        if plain and chunk.isascii():
            run.append(chunk)
            continue
        if plain:  # end the run at the end of a word
            border = len(run)
            while border and not _ends(
                run[border - 1], chunk if border == len(run) else run[border]
            ):
                border -= 1
            yield "".join(run[:border])
            run, plain = [*run[border:], chunk], False
        elif _ends(run[-1], chunk):
            yield "".join(run)
            run, plain = [chunk], chunk.isascii()
        else:
            run.append(chunk)
    yield "".join(run)


def _ends(before: str, after: str) -> bool:
    """Whether a word ends between two chunks, the second beginning with a space."""
    last, first = before[-1], after[0]
    if first in "\r\n":  # some patterns take line ends into a word of punctuation
        return last.isascii() and last.isalnum()
    return not last.isspace()


def _word_pattern(described: dict[str, Any]) -> str | None:
    """The pattern of words of a tokenizer encoding each word by itself; None for any other."""
    model, cuts = described["model"], described["pre_tokenizer"]
    plain = model["type"] == "BPE" and not model["dropout"] and described["normalizer"] is None
    plain &= all(token["special"] for token in described["added_tokens"])
    if not plain or cuts is None:
        return None
    *split, last = cuts["pretokenizers"] if cuts["type"] == "Sequence" else [cuts]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if last["use_regex"]:
        return None if split else ENCODINGS["gpt2"].pattern
    if len(split) != 1 or split[0]["type"] != "Split":
        return None
    (splitter,) = split
    usual = splitter["behavior"] == "Isolated" and not splitter["invert"]
    return splitter["pattern"].get("Regex") if usual else None
