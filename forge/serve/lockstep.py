"""Decoding on several ranks in lockstep: the main rank plans each step, the others repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from forge.models.batching.row import Drawn, Prompt, Row
from forge.models.batching.slots import Apart, Rows, Slots, refillable
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling

READ, READ_ON, JOIN, DRAW, EMPTY, IDLE, END = range(7)
"""Orders of the main rank: read a prompt, and its next chunk; put rows into slots; draw tokens;
begin with empty slots; nothing; and the end.
"""
Order = tuple[int, list[int], Any]
"""What is to be done, the slots that were freed before it, in their order, and its argument."""
UNTIL_ENDED = object()


class _Leading(Rows):
    """Rows of the main rank, which tell the other ranks what is done before it is done."""

    tell: Callable[[Order], Any]

    def order(self, kind: int, argument: Any = None) -> None:
        """Tell the other ranks what comes, with the slots freed before. A collective."""
        self.tell((kind, self.freed, argument))
        self.freed = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.freed: list[int] = []

    def reading(self, prompts: Iterable[Prompt], chunk: int = 0) -> Iterator[None]:
        texts = list(prompts)
        parts = super().reading(texts, chunk)
        self.order(READ, (texts, chunk))
        while next(parts, UNTIL_ENDED) is not UNTIL_ENDED:
            yield
            self.order(READ_ON)

    def join(self, rows: Sequence[Row]) -> None:
        self.order(JOIN, [row.prompt for row in rows])
        super().join(rows)

    def draw_next(self, count: int = 1) -> list[Row]:
        count = self.steps(count)
        self.order(DRAW, count)
        return super().draw_next(count)

    def remove(self, row: Row) -> None:
        self.freed.append(self.rows.index(row))
        super().remove(row)


class _FollowerRows(Rows):
    """Rows of another rank: they take the tokens of the main rank, and end when it says so."""

    def steps(self, count: int) -> int:
        return count

    def _draw(self, rows: Sequence[Row], slots: slice, hidden: Tensor, uniform: Tensor) -> Drawn:
        # All ranks with a part of the head take part in its product.
        logits = head_of(self.model).logits(hidden)
        tokens = self.how.agree(torch.zeros(len(rows), 1, dtype=torch.int64, device=logits.device))
        return Drawn(tokens=tokens, logprobs=tokens, candidates=None, support=None)

    def _take(self, rows: Sequence[Row], drawn: Sequence[Drawn], counts: Any = None) -> None:
        tokens = torch.cat([part.tokens for part in drawn], 1).tolist()
        for row, new in zip(rows, tokens, strict=True):
            row.tokens += new


class _LeadingSlots(_Leading, Slots):
    """Slots of the main rank."""


class _LeadingApart(_Leading, Apart):
    """Rows of the main rank, with a cache each."""


class _FollowingSlots(_FollowerRows, Slots):
    """Slots of another rank."""


class _FollowingApart(_FollowerRows, Apart):
    """Rows of another rank, with a cache each."""


class Lead:
    """Makes the rows of the main rank. send: gives a value to all ranks, a collective."""

    def __init__(self, send: Callable[[Order], Any]) -> None:
        self.send = send
        self.made = False

    def rows(
        self, model: Any, size: int, length: int, how: DrawOptions, device: torch.device
    ) -> Rows:
        """Empty rows, on all ranks."""
        if self.made:
            self.send((EMPTY, [], None))
        self.made = True
        if refillable(model):
            rows: Any = _LeadingSlots(model, size, length, length, how, device)
        else:
            rows = _LeadingApart(model, size, length, how, device)
        rows.tell = self.send
        return rows

    def idle(self) -> None:
        """Tell the other ranks that the main rank is there."""
        self.send((IDLE, [], None))

    def end(self) -> None:
        """Let the other ranks leave."""
        self.send((END, [], None))


def follow(
    model: Any,
    size: int,
    length: int,
    how: DrawOptions,
    device: torch.device,
    receive: Callable[[], Order],
) -> None:
    """Repeat the steps of the main rank until it ends. size, length, how: as there."""

    def empty() -> Rows:
        if refillable(model):
            return _FollowingSlots(model, size, length, length, how, device)
        return _FollowingApart(model, size, length, how, device)

    rows, reading = empty(), iter(())
    with evaluating(model):
        while True:
            kind, freed, argument = receive()
            for slot in freed:
                rows.remove(rows.rows[slot])
            if kind == END:
                return
            if kind == EMPTY:
                rows = empty()
            elif kind == READ:
                rows.read.clear()  # one request joins at a time
                reading = rows.reading(*argument)
                next(reading, None)
            elif kind == READ_ON:
                next(reading, None)
            elif kind == JOIN:
                rows.join([_mirrored(prompt) for prompt in argument])
            elif kind == DRAW:
                rows.draw_next(argument)


def _mirrored(prompt: Prompt) -> Row:
    """A row whose tokens are drawn by the main rank."""
    return Row(prompt=prompt, number=0, most=1, sampling=Sampling(temperature=0))
