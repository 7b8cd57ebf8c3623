"""Near-duplicates by MinHash: among documents with nearly the same words in the same order the
first is kept.

A document is the set of its shingles, all runs of five words. The similarity of two documents is
the share of common shingles (Jaccard). A signature has the least value of each of 128 random
functions over the set; two signatures agree in the same share on average (Broder 1997). Documents
are compared where their signatures agree in one of several bands of values.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

WORDS_IN_SHINGLE, FUNCTIONS, AT_ONCE = 5, 128, 4096
MOST_MISSED = 0.01  # of pairs as alike as the threshold
EASTERN = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # a word each, since no spaces part words
WORD = re.compile(rf"[{EASTERN}]|[^\W{EASTERN}]+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)
NOTHING = np.uint32(0xFFFFFFFF)


def _functions() -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.Generator(np.random.Philox(key=1997)).integers(
        0, 1 << 63, (2, FUNCTIONS, 1), dtype=np.uint64
    )
    return drawn[0] * np.uint64(2) + np.uint64(1), drawn[1]


FACTORS, SUMMANDS = _functions()


def shingles(text: str) -> np.ndarray:
    """Distinct hashes of the runs of five words in a text, uint64; fewer words give one hash."""
    words = WORD.findall(text.lower()) or [text] * bool(text.strip())
    if not words:
        return np.zeros(0, np.uint64)
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in words), np.uint64, len(words))
    runs = max(len(words) - WORDS_IN_SHINGLE + 1, 1)
    mixed = np.zeros(runs, np.uint64)
    for offset in range(min(WORDS_IN_SHINGLE, len(words))):
        mixed = _mixed(mixed * FACTOR + hashes[offset : offset + runs])
    return np.unique(mixed)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Finaliser of splitmix64: every bit depends on every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def signatures(texts: Sequence[str]) -> np.ndarray:
    """The least value of each function over a text's shingles: uint32 [texts, 128]; all maximal for
    a text without words.
    """
    least_values = np.full((len(texts), FUNCTIONS), NOTHING, dtype=np.uint32)
    for row, text in zip(least_values, texts, strict=True):
        hashes = shingles(text)
        for start in range(0, len(hashes), AT_ONCE):
            values = FACTORS * hashes[None, start : start + AT_ONCE] + SUMMANDS
            least = (values.min(1) >> np.uint64(32)).astype(np.uint32)
            np.minimum(row, least, out=row)
    return least_values


def bands_of(threshold: float) -> tuple[int, int]:
    """(bands, values in a band) with the fewest candidates finding 99 % of pairs at the
    threshold.
    """
    for rows in range(FUNCTIONS, 1, -1):
        bands = FUNCTIONS // rows
        if (1 - threshold**rows) ** bands <= MOST_MISSED:
            return bands, rows
    return FUNCTIONS, 1


def near_duplicates(parts: Sequence[np.ndarray], threshold: float) -> np.ndarray:
    """Mask of the documents as alike as the threshold to an earlier one not masked: bool
    [documents]. parts: signatures of all documents in order, possibly maps of files; memory is
    eight bytes a document for each band.
    """
    bands, rows = bands_of(threshold)
    keys = np.concatenate([_keys(part, bands, rows) for part in parts])
    empty = np.concatenate([(part == NOTHING).all(1) for part in parts])
    shared = np.zeros(keys.shape, dtype=bool)
    for band in range(bands):
        _, group, size = np.unique(keys[:, band], return_inverse=True, return_counts=True)
        shared[:, band] = (size > 1)[group] & ~empty
    starts = np.cumsum([0, *map(len, parts)])

    def signature(number: int) -> np.ndarray:
        part = int(np.searchsorted(starts, number, side="right")) - 1
        return parts[part][number - starts[part]]

    left_out = np.zeros(len(keys), dtype=bool)
    candidates: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in np.flatnonzero(shared.any(1)).tolist():
        values, compared = signature(number), set[int]()
        band_keys = [
            (band, int(keys[number, band])) for band in np.flatnonzero(shared[number]).tolist()
        ]
        for other in (other for key in band_keys for other in candidates[key]):
            if other not in compared:
                compared.add(other)
                if (signature(other) == values).mean() >= threshold:
                    left_out[number] = True
                    break
        else:
            for key in band_keys:
                candidates[key].append(number)
    return left_out


def _keys(part: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """A hash of each band: uint64 [documents, bands]."""
    used = np.asarray(part[:, : bands * rows], dtype=np.uint64).reshape(-1, bands, rows)
    keys = np.zeros(used.shape[:2], np.uint64)
    for row in range(rows):
        keys = _mixed(keys * FACTOR + used[:, :, row])
    return keys
