"""Completions with continuous batching: an ended row makes room for the next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from forge.models.batching.row import Prompt, Row
from forge.models.batching.slots import Slots, refillable
from forge.models.reading_mode import evaluating
from forge.models.sampling import LOOK_EVERY, Continued, DrawOptions, Ended, continue_rows


@torch.no_grad()
def write_rows(
    model: Any,
    prompts: Sequence[Prompt],
    numbers: Sequence[object],
    max_new_tokens: int,
    how: DrawOptions,
    device: torch.device,
    *,
    size: int,
) -> Continued:
    """Continue each prompt by at most max_new_tokens, `size` rows at a time.

    As `continue_rows`, but an ended row's place is taken by the next row; a prompt that several
    rows begin with is read once. Models whose cache has no place for this (windows, states) take
    batch after batch. ValueError: as `continue_rows`.
    """
    with evaluating(model):
        if refillable(model) and how.use_cache:
            return _refilled(model, prompts, numbers, max_new_tokens, how, device, size)
        result = Continued(tokens=[])
        for start in range(0, len(prompts), size):
            rows = slice(start, start + size)
            ended = how.ended and partial(_after, how.ended, start)
            part = continue_rows(
                model,
                prompts[rows],
                max_new_tokens,
                replace(how, ended=ended),
                device,
                numbers[rows],
            )
            result.tokens += part.tokens
            result.logprobs += part.logprobs
            result.support += part.support
            result.read += part.read
        return result


def _after(ended: Ended, start: int, row: int, drawn: list[int]) -> bool:
    return ended(start + row, drawn)


def _refilled(
    model: Any,
    prompts: Sequence[Prompt],
    numbers: Sequence[object],
    max_new_tokens: int,
    how: DrawOptions,
    device: torch.device,
    size: int,
) -> Continued:
    """As `write_rows`, in slots of one cache."""
    rows = _rows(model, prompts, numbers, max_new_tokens, how)
    queue = deque(row for row in rows if row.most > 0)
    uses = Counter(row.prompt for row in queue)
    length = max(map(len, prompts), default=0) + max_new_tokens
    slots = Slots(model, min(size, len(queue)), length, max_new_tokens, how, device)
    every = how.every or (1 if device.type == "cpu" else LOOK_EVERY)
    while queue or slots.rows:
        while queue and slots.free:
            _join_next(slots, queue, uses)
        if slots.rows:
            slots.draw_next(every)
    return Continued(
        tokens=[row.tokens for row in rows],
        logprobs=[row.logprobs for row in rows],
        support=[row.support for row in rows] if how.with_support else [],
        read=slots.n_read,
    )


def _join_next(slots: Slots, queue: deque[Row], uses: Counter[Prompt]) -> None:
    """Fill the free slots; the cache of a prompt goes with its last completion."""
    joining = [queue.popleft() for _ in range(min(slots.free, len(queue)))]
    for _ in slots.reading(row.prompt for row in joining):
        pass
    slots.join(joining)
    uses.subtract(row.prompt for row in joining)
    slots.read = {text: read for text, read in slots.read.items() if uses[text]}


def _rows(
    model: Any,
    prompts: Sequence[Prompt],
    numbers: Sequence[object],
    max_new_tokens: int,
    how: DrawOptions,
) -> list[Row]:
    ends = how.ends if how.eos_id is None else how.ends | {how.eos_id}
    return [
        Row(
            prompt=prompt,
            number=number,
            most=min(max_new_tokens, model.max_seq_len - len(prompt)),
            sampling=how.sampling,
            ends=ends,
            ended=partial(how.ended, index) if how.ended else None,
        )
        for index, (prompt, number) in enumerate(zip(prompts, numbers, strict=True))
    ]
