"""Packing of pieces of documents into samples, planned before reading.

A document longer than a sequence gives whole windows, each beginning with the last target of the
window before, and a remainder. So every token but the first of a document is a target once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from forge.config.data.text import BEST_FIT_CROP, BUFFERED
from forge.data.batches.buffered_fit import BufferedFit
from forge.data.tokens.store import COUNTS, ENDS, GOES_ON, TokenStore, ends_of

BLOCK = 1 << 24
COUNTED = ("cut_off", "left_out", "cropped")
"""Counts of a plan, the sums over its parts."""
Bins = list[list[int]]
Fit = Callable[[Sequence[int], int, int], Bins]
"""Lengths of pieces in order, the room of a sample and the most pieces of one (0 = any number) ->
the pieces of each sample.
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Pieces of documents by sample. pieces: int64 [pieces, 2], the first token and the
    past-the-end token of each. begins: int64 [samples + 1], the first piece of each sample, then
    the number of pieces. cut_off, left_out: numbers of documents too long. cropped: tokens dropped
    by best_fit_crop.
    """

    pieces: np.ndarray
    begins: np.ndarray
    cut_off: int = 0
    left_out: int = 0
    cropped: int = 0

    def __len__(self) -> int:
        return len(self.begins) - 1

    def pieces_of(self, sample: int) -> list[tuple[int, int]]:
        first, last = self.begins[sample : sample + 2].tolist()
        return [(start, stop) for start, stop in self.pieces[first:last].tolist()]

    @cached_property
    def n_tokens(self) -> int:
        """Tokens read in all samples; the last token of each is only a target."""
        return int(np.diff(self.pieces, axis=1).sum()) - len(self)

    def filled(self, seq_len: int) -> float:
        """The share of text in all sequences."""
        return self.n_tokens / (len(self) * seq_len)

    @property
    def cropped_share(self) -> float:
        """The share of the planned text that is dropped."""
        return self.cropped / max(self.cropped + self.n_tokens + len(self), 1)

    def said_cropped(self) -> str:
        """The dropped tokens in words."""
        return f"{self.cropped:,} tokens, {self.cropped_share:.1%} of the text, are cropped off"


def plan_samples(
    store: TokenStore,
    *,
    end_of_text: int,
    seq_len: int,
    policy: str,
    max_segments: int,
    too_long: str = "split",
    **buffered: Any,
) -> Plan:
    """Plan the samples of a store. policy, too_long: as in data.packing and data.too_long.
    max_segments: most documents in a sample; 0 = any number. Documents of one token have no target,
    and are left out. buffered: as in `buffered_parts`. ValueError: a document is too long, with
    too_long=refuse.
    """
    if policy in BUFFERED:
        options: Any = {"policy": policy, "max_segments": max_segments, "too_long": too_long}
        options |= {"end_of_text": end_of_text, "seq_len": seq_len}
        return joined_parts(list(buffered_parts(store, **options, **buffered)))
    ends = find_ends(store, end_of_text)
    if policy == "concat_then_split":
        windows = list(_windows(ends, len(store), seq_len, max_segments))
        return Plan(pieces=_array(windows), begins=np.arange(len(windows) + 1))
    short = fitting(store, ends, seq_len, too_long)
    pieces, closed = _cut_documents(ends, len(store), seq_len, short.stops)
    if policy == "next_fit":  # whole windows leave no room for others
        closed = set()
    rests = [number for number in range(len(pieces)) if number not in closed]
    lengths = [pieces[number][1] - pieces[number][0] for number in rests]
    packed = FITS[policy](lengths, seq_len + 1, max_segments)
    bins = [[number] for number in closed] + [
        [rests[index] for index in members] for members in packed
    ]
    bins.sort()  # in the order of first pieces in the text
    begins = np.cumsum([0, *map(len, bins)])
    all_pieces = _array([pieces[number] for members in bins for number in members])
    counts = {"cut_off": short.cut_off, "left_out": short.left_out}
    return Plan(pieces=all_pieces, begins=begins, **counts)


def buffered_parts(
    store: TokenStore,
    *,
    end_of_text: int,
    seq_len: int,
    policy: str,
    max_segments: int,
    too_long: str,
    buffer: int,
    begin_of_text: int | None = None,
) -> Iterator[Plan]:
    """Plan the samples of best_fit_crop or best_fit_pad, a part of the plan at a time. buffer:
    documents chosen among. begin_of_text: the token beginning documents, where none ends them. No
    more than a block of tokens and the buffer is in memory.
    """
    crop = policy == BEST_FIT_CROP
    fit = BufferedFit(room=seq_len + 1, size=buffer, crop=crop, most=max_segments)
    blocks = _document_blocks(store, end_of_text, begin_of_text)
    short, before = Fitting(np.zeros(0, np.int64), 0, 0), 0
    for starts, stops in blocks:
        short = shortened(store, starts, stops, seq_len, too_long)
        read = short.stops > starts
        fit.add(starts[read], short.stops[read])
        yield _part(fit, before, short)
        before = fit.cropped
    fit.finish()
    yield _part(fit, before, short._replace(cut_off=0, left_out=0))


def _part(fit: BufferedFit, before: int, short: Fitting) -> Plan:
    """The rows completed since the last part. before: tokens cropped until then."""
    pieces, lengths = fit.rows()
    counts = {"cut_off": short.cut_off, "left_out": short.left_out}
    begins = np.cumsum([0, *lengths.tolist()])
    return Plan(pieces=pieces, begins=begins, cropped=fit.cropped - before, **counts)


def joined_parts(parts: Sequence[Plan]) -> Plan:
    """The plan of all parts."""
    counts = {name: sum(getattr(part, name) for part in parts) for name in COUNTED}
    offsets = np.cumsum([0, *(len(part.pieces) for part in parts)])
    begins = [part.begins[1:] + offset for part, offset in zip(parts, offsets, strict=False)]
    pieces = np.concatenate([part.pieces for part in parts])
    return Plan(pieces=pieces, begins=np.concatenate([[0], *begins]).astype(np.int64), **counts)


def _document_blocks(
    store: TokenStore, end_of_text: int, begin_of_text: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the first and past-the-end tokens of documents, int64 [documents] each, in order. The
    last may lack its end.
    """
    size, start = len(store), 0
    for block in range(0, size, BLOCK):
        stop = min(block + BLOCK, size)
        tokens = store.read(block, stop)
        marks = None if store.counted is None else store.counted.read(block, stop)
        if begin_of_text is None:
            borders = np.flatnonzero(ends_of(tokens, marks, end_of_text)) + 1
        else:
            begins = tokens == begin_of_text
            ended = np.zeros(0, np.int64)
            if marks is not None:  # rendered conversations are marked instead
                begins &= marks & GOES_ON == 0
                ended = np.flatnonzero(marks & ENDS) + 1
            borders = np.union1d(np.flatnonzero(begins), ended)
        stops = borders + block
        stops = stops[stops > start]
        if stop == size and (not len(stops) or stops[-1] < size):
            stops = np.append(stops, size)
        if len(stops):
            yield np.append(start, stops[:-1]).astype(np.int64), stops.astype(np.int64)
            start = int(stops[-1])


class Fitting(NamedTuple):
    """stops: past-the-end token of the part read of each document, int64 [documents]. cut_off,
    left_out: numbers of documents ending early, and not read at all.
    """

    stops: np.ndarray
    cut_off: int
    left_out: int


def fitting(store: TokenStore, ends: np.ndarray, seq_len: int, too_long: str) -> Fitting:
    """The parts to read of documents of more than seq_len + 1 tokens. A truncated document without
    a target is left out too. ValueError: a document is too long, with too_long=refuse.
    """
    stops = np.append(ends + 1, len(store)) if _unended(ends, len(store)) else ends + 1
    starts = np.append(0, stops[:-1]) if len(stops) else stops
    return shortened(store, starts, stops, seq_len, too_long)


def shortened(
    store: TokenStore, starts: np.ndarray, stops: np.ndarray, seq_len: int, too_long: str
) -> Fitting:
    """The parts to read of documents, as `fitting`; starts, stops: of each document."""
    long = np.flatnonzero(stops - starts > seq_len + 1)
    if too_long == "split" or not len(long):
        return Fitting(stops, 0, 0)
    if too_long == "refuse":
        size, most = len(long), int((stops - starts).max())
        fault = f"{size:,} documents are longer than train.seq_len + 1, one of {most:,} tokens"
        hint = "Set train.seq_len larger, or data.too_long=truncate or drop"
        raise ValueError(f"data.too_long = refuse: {fault}. {hint}.")
    stops = stops.copy()
    stops[long] = starts[long]
    n_cut = 0
    for number in long if too_long == "truncate" else ():
        start = int(starts[number])
        stop = start + seq_len + 1
        marks = None if store.counted is None else store.counted.read(start + 1, stop)
        if marks is None or (marks & COUNTS).any():
            stops[number], n_cut = stop, n_cut + 1
    return Fitting(stops, n_cut, len(long) - n_cut)


def _unended(ends: np.ndarray, size: int) -> bool:
    """Whether a text ends within a document."""
    return bool(size) and (not len(ends) or int(ends[-1]) != size - 1)


def find_ends(store: TokenStore, end_of_text: int) -> np.ndarray:
    """The numbers of the last tokens of documents, int64."""
    size, ends = len(store), []
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        marks = None if store.counted is None else store.counted.read(start, stop)
        ends.append(start + np.flatnonzero(ends_of(store.read(start, stop), marks, end_of_text)))
    return np.concatenate(ends or [np.zeros(0, np.int64)]).astype(np.int64)


def _windows(
    ends: np.ndarray, size: int, seq_len: int, max_segments: int
) -> Iterator[tuple[int, int]]:
    """Windows of seq_len + 1 tokens, seq_len apart, or shorter ones of max_segments documents."""
    start = 0
    while start < size - 1:
        stop = min(start + seq_len, size - 1)
        if max_segments:
            last = int(np.searchsorted(ends, start)) + max_segments - 1
            stop = min(stop, int(ends[last]) + 1) if last < len(ends) else stop
        yield start, min(stop + 1, size)
        start = stop


def _cut_documents(
    ends: np.ndarray, size: int, seq_len: int, stops: np.ndarray
) -> tuple[list[tuple[int, int]], set[int]]:
    """The pieces of all documents up to their stops; and the numbers of pieces filling a sample
    alone: whole windows, and the last piece where the text ends within a document.
    """
    pieces: list[tuple[int, int]] = []
    closed: set[int] = set()
    starts = [0, *(ends + 1).tolist()]
    for start, stop in zip(starts, stops.tolist(), strict=False):
        for window in range(start, stop - seq_len, seq_len):
            closed.add(len(pieces))
            pieces.append((window, window + seq_len + 1))
        last_start = start + max(stop - start - 1, 0) // seq_len * seq_len
        if stop - last_start > 1:
            if stop == size and _unended(ends, size):
                closed.add(len(pieces))
            pieces.append((last_start, stop))
    return pieces, closed


def first_fit(lengths: Sequence[int], room: int, most: int) -> Bins:
    """Put each piece into the first sample with room, found in a tree of maxima."""
    leaves = 1 << max(len(lengths) - 1, 1).bit_length()
    free = [0] * leaves + [room] * leaves  # tokens free in samples, all still empty
    for node in range(leaves - 1, 0, -1):
        free[node] = max(free[2 * node], free[2 * node + 1])
    bins: Bins = []
    for number, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node = 2 * node + (free[2 * node] < length)
        if node - leaves == len(bins):
            bins.append([])
        held = bins[node - leaves]
        held.append(number)
        free[node] = 0 if len(held) == most else free[node] - length
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return bins


def best_fit(lengths: Sequence[int], room: int, most: int) -> Bins:
    """Put each piece into the sample left with least room, the first of several."""
    bins: Bins = []
    with_room: list[list[int]] = [[] for _ in range(room + 1)]  # heaps of samples
    free_sizes = 0  # bit i: whether a sample has i tokens free
    for number, length in enumerate(lengths):
        fitting = free_sizes >> length
        if fitting:
            free = length + (fitting & -fitting).bit_length() - 1
            index = heapq.heappop(with_room[free])
            if not with_room[free]:
                free_sizes &= ~(1 << free)
        else:
            free, index = room, len(bins)
            bins.append([])
        bins[index].append(number)
        if len(bins[index]) != most:
            heapq.heappush(with_room[free - length], index)
            free_sizes |= 1 << (free - length)
    return bins


def next_fit(lengths: Sequence[int], room: int, most: int) -> Bins:
    """Put each piece into the sample begun last; without room there, begin the next."""
    bins: Bins = []
    free = 0
    for number, length in enumerate(lengths):
        if not bins or length > free or len(bins[-1]) == most:
            bins.append([])
            free = room
        bins[-1].append(number)
        free -= length
    return bins


def _bin_per_piece(lengths: Sequence[int], room: int, most: int) -> Bins:
    """Put each piece into a sample of its own."""
    return [[number] for number in range(len(lengths))]


FITS: dict[str, Fit] = {
    "first_fit": first_fit,
    "best_fit": best_fit,
    "next_fit": next_fit,
    "none": _bin_per_piece,
}


def _array(pieces: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)
