"""Continuous batching: rows of tokens in slots of a cache; an ended row makes room for the next.

All rows of the cache end at the same place, with padding before each text. A new row's prompt is
read apart, and its keys and values are copied into a free slot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forge.models.cache import KVCache
from forge.models.contract import Cached
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.models.sampling import LOOK_EVERY, Continued, Ended, How, continue_rows
from forge.models.token_distribution import NONE, NOT_FINITE, logprobs_of, uniforms
from forge.tensors.wide import widest

SPARE = 64  # places of a cache beyond the longest text, so that texts are moved rarely
Prompt = tuple[int, ...]
States = list[tuple[Tensor, ...]]


@torch.no_grad()
def write_rows(
    model: Any,
    prompts: Sequence[Prompt],
    numbers: Sequence[object],
    max_new_tokens: int,
    how: How,
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
            return _Slots(model, prompts, numbers, max_new_tokens, how, device, size).write()
        result = Continued(tokens=[])
        for start in range(0, len(prompts), size):
            rows = slice(start, start + size)
            ended = how.ended and partial(_after, how.ended, start)
            of_part = replace(how, ended=ended)
            part = continue_rows(
                model, prompts[rows], max_new_tokens, of_part, device, numbers[rows]
            )
            result.tokens += part.tokens
            result.logprobs += part.logprobs
            result.read += part.read
        return result


def _after(ended: Ended, start: int, row: int, drawn: list[int]) -> bool:
    return ended(start + row, drawn)


def refillable(model: Any) -> bool:
    """Whether rows of the model's cache can be replaced: keys and values of all tokens."""
    if not (isinstance(model, Cached) and getattr(model, "reads_padding", False)):
        return False
    cache = model.new_cache(1)
    return isinstance(cache, KVCache) and not any(layer.span.window for layer in cache.layers)


class _Slots:
    """A batch of rows with a shared cache of `length` tokens; rows[slot] = the row, None = free."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Prompt],
        numbers: Sequence[object],
        max_new_tokens: int,
        how: How,
        device: torch.device,
        size: int,
    ) -> None:
        self.model, self.prompts, self.numbers, self.how = model, prompts, numbers, how
        self.device, self.most = (
            device,
            [min(max_new_tokens, model.max_seq_len - len(prompt)) for prompt in prompts],
        )
        self.ends = how.ends if how.eos_id is None else how.ends | {how.eos_id}
        self.result = Continued(tokens=[[] for _ in prompts], logprobs=[[] for _ in prompts])
        self.queue = deque(row for row, most in enumerate(self.most) if most > 0)
        self.uses = Counter(prompts[row] for row in self.queue)
        self.read: dict[Prompt, tuple[States, Tensor]] = {}
        count = min(size, len(self.queue))
        self.rows: list[int | None] = [None] * count
        longest = max(map(len, prompts), default=0) + max_new_tokens
        self.cache = model.new_cache(
            longest + SPARE, torch.zeros(count, dtype=torch.int64, device=device)
        )
        self.unread = torch.zeros(count, 1, dtype=torch.int64, device=device)
        self.draws = torch.zeros(count, max_new_tokens, device=device, dtype=widest(device))
        self.every = how.every or (1 if device.type == "cpu" else LOOK_EVERY)

    def write(self) -> Continued:
        """Draw tokens until every row has ended."""
        while self.queue or self._going():
            self._fill()
            if slots := self._going():
                self._make_room(slots)
                remaining = [
                    self.most[row] - len(self.result.tokens[row]) for row in slots.values()
                ]
                self._go_on(slots, min(self.every, *remaining))
        return self.result

    def _going(self) -> dict[int, int]:
        return {slot: row for slot, row in enumerate(self.rows) if row is not None}

    def _fill(self) -> None:
        """Put the next rows into free slots, each with its first token."""
        while self.queue and None in self.rows:
            free = [slot for slot, row in enumerate(self.rows) if row is None]
            pairs = [(slot, self.queue.popleft()) for slot in free[: len(self.queue)]]
            self._read({self.prompts[row] for _, row in pairs} - self.read.keys())
            self._move(min(0, self.cache.length - max(len(self.prompts[row]) for _, row in pairs)))
            hidden = torch.stack([self.read[self.prompts[row]][1] for _, row in pairs])
            for slot, row in pairs:
                self._enter(slot, row)
            slots = torch.tensor([slot for slot, _ in pairs], device=self.device)
            tokens, logprobs = self._draw(hidden, self.draws[slots, 0])
            self.unread[slots] = tokens.clamp(min=0)
            self._take(dict(enumerate(row for _, row in pairs)), [tokens], [logprobs])
        if not self.queue and None in self.rows:
            self._drop()

    def _read(self, prompts: set[Prompt]) -> None:
        """Read prompts as one batch, and remember what each leaves behind."""
        if not prompts:
            return
        texts = sorted(prompts)
        longest = max(map(len, texts))
        missing = [longest - len(text) for text in texts]
        padding = (torch.tensor(missing, device=self.device),) if any(missing) else ()
        cache = self.model.new_cache(longest, *padding)
        rows = [[0] * gap + list(text) for gap, text in zip(missing, texts, strict=True)]
        hidden = self.model.hidden(torch.tensor(rows, device=self.device), cache=cache)[:, -1]
        for index, (gap, text) in enumerate(zip(missing, texts, strict=True)):
            states = [
                tuple(held[index, ..., gap:longest, :] for held in layer.held)
                for layer in cache.layers
            ]
            self.read[text] = states, hidden[index]
        self.result.read += sum(map(len, texts))

    def _enter(self, slot: int, row: int) -> None:
        """Copy the cache of a row's prompt into a slot."""
        prompt, length = self.prompts[row], self.cache.length
        states, _ = self.read[prompt]
        for layer, parts in zip(self.cache.layers, states, strict=True):
            if not layer.held:
                layer.held = tuple(
                    part.new_zeros(len(self.rows), *part.shape[:-2], layer.size, part.shape[-1])
                    for part in parts
                )
            for held, part in zip(layer.held, parts, strict=True):
                held[slot, ..., length - len(prompt) : length, :] = part
        self.cache.padding[slot] = length - len(prompt)
        self.rows[slot] = row
        of_row = uniforms(self.how.sampling.seed, [self.numbers[row]], self.most[row], self.device)
        self.draws[slot, : self.most[row]] = of_row[0]
        self.uses[prompt] -= 1
        if not self.uses[prompt]:
            del self.read[prompt]

    def _make_room(self, slots: dict[int, int]) -> None:
        """Move texts to the front where all have much padding, or the cache is full."""
        length = self.cache.length
        least = length - max(
            len(self.prompts[row]) + len(self.result.tokens[row]) - 1 for row in slots.values()
        )
        if least >= SPARE or length + self.every > self.cache.max_len:
            self._move(least)

    def _move(self, places: int) -> None:
        """Move all texts of the cache to the front by `places`; below 0, to the back."""
        length = self.cache.length
        for layer in self.cache.layers:
            layer.length = length - places
            for held in layer.held if places else ():
                texts = held[..., max(places, 0) : length, :].clone()
                held[..., max(-places, 0) : length - places, :] = texts
        if places:
            self.cache.padding.sub_(places).clamp_(min=0)

    def _go_on(self, slots: dict[int, int], count: int) -> None:
        """Draw `count` tokens for each row."""
        tokens, logprobs = [], []
        position = torch.zeros(len(self.rows), dtype=torch.int64, device=self.device)
        for slot, row in slots.items():
            position[slot] = len(self.result.tokens[row])
        for number in range(count):
            hidden = self.model.hidden(self.unread, cache=self.cache)[:, -1]
            # A free slot takes any number.
            places = (position + number).clamp(max=self.draws.shape[1] - 1)
            drawn, logprob = self._draw(hidden, self.draws.gather(1, places[:, None])[:, 0])
            self.unread = drawn.clamp(min=0)
            tokens.append(drawn)
            logprobs.append(logprob)
        self._take(slots, tokens, logprobs)

    def _draw(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [rows, 1] and their log-probabilities at the temperature of the draw."""
        options = self.how
        logits = head_of(self.model).logits(hidden)
        drawn = options.agree(options.sampling.draw(logits[:, : options.n_ids], uniform)[:, None])
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return drawn, logprobs_of(wide / options.logprobs_at, drawn.clamp(min=0))

    def _take(self, rows: dict[int, int], tokens: list[Tensor], logprobs: list[Tensor]) -> None:
        """Give rows their tokens, up to an ending token, and free the slots of ended rows. rows:
        by index of the tensors.
        """
        new, probabilities = torch.cat(tokens, 1).tolist(), torch.cat(logprobs, 1).tolist()
        ended = self.how.ended
        for index, row in rows.items():
            taken = self.result.tokens[row]
            for token, logprob in zip(new[index], probabilities[index], strict=True):
                if token == NONE:
                    raise FloatingPointError(NOT_FINITE)
                taken.append(token)
                self.result.logprobs[row].append(logprob)
                if (
                    len(taken) == self.most[row]
                    or token in self.ends
                    or (ended and ended(row, taken))
                ):
                    self.rows[self.rows.index(row)] = None
                    break

    def _drop(self) -> None:
        """Take free slots out of the batch: no row waits for one."""
        index = torch.tensor(list(self._going()), dtype=torch.int64, device=self.device)
        self.rows = [row for row in self.rows if row is not None]
        self.cache.select(index)
        self.unread, self.draws = self.unread[index], self.draws[index]
