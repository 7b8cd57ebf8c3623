"""Continuous batching: texts in slots of one cache, which join and leave between steps.

All texts of the cache end at the same place, with padding before each. A prompt is read apart, and
its keys and values are copied into a free slot. Live texts stand in the first slots, so that a step
reads no free one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.rollouts.rollout import SPARE_PLACES
from forge.models.batching.row import Drawn, Prompt, Row
from forge.models.cache import KVCache
from forge.models.contract import Cached
from forge.models.head import head_of
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import (
    NONE,
    logprobs_of,
    logprobs_within,
    scaled,
    uniforms,
)
from forge.tensors.wide import widest


def refillable(model: Any) -> bool:
    """Whether rows of the model's cache can be replaced: keys and values of all tokens."""
    if not (isinstance(model, Cached) and getattr(model, "reads_padding", False)):
        return False
    # A layer of a kind without a span, such as a delta net, has a state; so has a memory.
    with_state = set(getattr(model, "kinds", ())) - set(getattr(model, "spans", ()))
    if with_state or len(getattr(model, "engrams", ())):
        return False
    cache = model.new_cache(1)
    return isinstance(cache, KVCache) and not any(layer.span.window for layer in cache.layers)


class Rows:
    """Live texts, `size` at most, that draw their tokens together; base of `Slots` and `Apart`.

    new: tokens that a text draws at most. how: its n_ids, agree and logprobs_at are used. n_read:
    tokens of the prompts read. Call all methods in eval mode.
    """

    def __init__(
        self, model: Any, size: int, new: int, how: DrawOptions, device: torch.device
    ) -> None:
        self.model, self.size, self.how, self.device = model, size, how, device
        self.rows: list[Row] = []
        self.read: dict[Prompt, Any] = {}
        self.n_read = 0
        self.unread = torch.zeros(size, 1, dtype=torch.int64, device=device)
        self.draws = torch.zeros(size, new, device=device, dtype=widest(device))
        self.had: Tensor | None = None  # tokens of each text, where one has a repetition penalty

    @property
    def free(self) -> int:
        return self.size - len(self.rows)

    @torch.no_grad()
    def reading(self, prompts: Iterable[Prompt], chunk: int = 0) -> Iterator[None]:
        """Read prompts into `read`; yields after each chunk of tokens. chunk: 0 = all at once."""
        raise NotImplementedError

    @torch.no_grad()
    def join(self, rows: Sequence[Row]) -> None:
        """Put rows into free slots, each with its first token; their prompts were read."""
        begin = len(self.rows)
        hidden = self._enter(rows)
        for slot, row in enumerate(rows, begin):
            stream = uniforms(row.sampling.seed, [row.number], row.most, self.device)
            self.draws[slot, : row.most] = stream[0]
        self.rows += rows
        slots = slice(begin, len(self.rows))
        drawn = self._draw(rows, slots, hidden, self.draws[slots, 0])
        self.unread[slots] = drawn.tokens.clamp(min=0)
        self._take(rows, [drawn])

    @torch.no_grad()
    def draw_next(self, count: int = 1) -> list[Row]:
        """Draw `count` tokens for each row, fewer where a row's number ends; returns the rows."""
        rows, count = list(self.rows), self.steps(count)
        self._make_room(count)
        slots = slice(0, len(rows))
        unread, drawn = self.unread[slots], []
        position = torch.tensor([len(row.tokens) for row in rows], device=self.device)
        for number in range(count):
            hidden = self._hidden(unread)
            uniform = self.draws[slots].gather(1, (position + number)[:, None])[:, 0]
            drawn.append(self._draw(rows, slots, hidden, uniform))
            unread = drawn[-1].tokens.clamp(min=0)
        self.unread[slots] = unread
        self._went_on()
        self._take(rows, drawn)
        return rows

    def steps(self, count: int) -> int:
        """Tokens that each row can draw before a look at them, `count` at most."""
        if any(row.guide for row in self.rows):
            return 1  # the next mask depends on the token
        return min([count, *(row.most - len(row.tokens) for row in self.rows)])

    def remove(self, row: Row) -> None:
        """Free the slot of a row; the last live row moves into it."""
        slot, last = self.rows.index(row), len(self.rows) - 1
        if slot != last:
            for held in (self.unread, self.draws, self.had):
                if held is not None:
                    held[slot] = held[last]
        self._replace(slot, last)
        self.rows[slot] = self.rows[last]
        self.rows.pop()
        self._shrunk()

    def _enter(self, rows: Sequence[Row]) -> Tensor:
        """Take rows into the next slots; returns the hidden states of the prompts' ends."""
        raise NotImplementedError

    def _hidden(self, unread: Tensor) -> Tensor:
        """Hidden states after the unread token of each live row, [rows, dim]."""
        raise NotImplementedError

    def _replace(self, slot: int, last: int) -> None:
        """Move the cache of the last live slot into another."""
        raise NotImplementedError

    def _make_room(self, count: int) -> None:
        """Make room for `count` tokens of each live row."""

    def _went_on(self) -> None:
        """Keep what the model left in its cache beside keys and values."""

    def _shrunk(self) -> None:
        """Adapt to fewer live rows."""

    def _draw(self, rows: Sequence[Row], slots: slice, hidden: Tensor, uniform: Tensor) -> Drawn:
        """The next token of each row."""
        logits = head_of(self.model).logits(hidden)
        usable = logits[:, : self.how.n_ids]
        self._mark(rows, slots, usable)
        guided = _guided(rows, usable)
        drawn = self.how.agree(self._drawn(rows, slots, guided, uniform)[:, None])
        if self.had is not None:
            self.had[slots] = self.had[slots].scatter(1, drawn.clamp(min=0), True)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        top = min(max(row.top for row in rows), usable.shape[1])
        candidates = None
        if top:
            of_table = scaled(wide, self.how.logprobs_at).log_softmax(-1)
            candidates = of_table[:, : self.how.n_ids].topk(top)
        logprobs, support = self._logprobs(rows, wide, usable, drawn.clamp(min=0))
        return Drawn(tokens=drawn, logprobs=logprobs, candidates=candidates, support=support)

    def _logprobs(
        self, rows: Sequence[Row], wide: Tensor, usable: Tensor, drawn: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of tokens, [rows, 1], and what a cut left to draw from. wide: logits
        of all tokens; usable: of those that may be drawn.
        """
        ways = {row.sampling.options for row in rows}
        if not self.how.as_drawn:
            return logprobs_of(scaled(wide, self.how.logprobs_at), drawn), None
        if len(ways) > 1:
            parts = [
                self._logprobs([row], *(held[index : index + 1] for held in (wide, usable, drawn)))
                for index, row in enumerate(rows)
            ]
            return torch.cat([part[0] for part in parts]), None
        sampling = rows[0].sampling
        # Greedy rows have no other distribution than the model's.
        wide = scaled(wide, sampling.temperature or 1.0)
        if not sampling.cuts or not sampling.temperature:
            return logprobs_of(wide, drawn), None
        support = sampling.support(usable)
        return logprobs_within(wide, drawn, support), support

    def _mark(self, rows: Sequence[Row], slots: slice, usable: Tensor) -> None:
        """Mark the tokens of new texts, where a repetition penalty needs them."""
        if self.had is None and any(row.sampling.repetition_penalty != 1 for row in rows):
            had = torch.zeros(self.size, usable.shape[1], dtype=torch.bool, device=usable.device)
            marked = list(enumerate(self.rows))
        elif self.had is not None:
            had = self.had
            marked = [(slots.start + n, row) for n, row in enumerate(rows) if not row.tokens]
        else:
            return
        self.had = had
        for slot, row in marked:
            had[slot] = False
            had[slot, torch.tensor([*row.prompt, *row.tokens], device=usable.device)] = True

    def _drawn(self, rows: Sequence[Row], slots: slice, logits: Tensor, uniform: Tensor) -> Tensor:
        """Draw a token for each row, [rows]; rows with equal options at once."""
        by_options: dict[tuple[float, ...], list[int]] = {}
        for index, row in enumerate(rows):
            by_options.setdefault(row.sampling.options, []).append(index)
        had = None if self.had is None else self.had[slots]
        drawn = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for indices in by_options.values():
            sampling = rows[indices[0]].sampling
            penalty = sampling.repetition_penalty != 1
            if len(by_options) == 1:
                return sampling.draw(logits, uniform, had if penalty else None)
            places = torch.tensor(indices, device=logits.device)
            marked = had[places] if had is not None and penalty else None
            drawn[places] = sampling.draw(logits[places], uniform[places], marked)
        return drawn

    def _take(self, rows: Sequence[Row], drawn: Sequence[Drawn], counts: Any = None) -> None:
        """Give rows their tokens, the first counts[row] of them, up to an ending token, and free
        the slots of ended rows.
        """
        tokens = torch.cat([part.tokens for part in drawn], 1).tolist()
        logprobs = torch.cat([part.logprobs for part in drawn], 1).tolist()
        likeliest = [_pairs(part.candidates, len(rows)) for part in drawn]
        support = [None if part.support is None else part.support.tolist() for part in drawn]
        for index, row in enumerate(rows):
            for place, token in enumerate(tokens[index][: counts and counts[index]]):
                row.take(token, logprobs[index][place], likeliest[place][index])
                if (ids := support[place]) is not None:
                    row.support.append([each for each in ids[index] if each != NONE])
                if row.over:
                    self.remove(row)
                    break


def _guided(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """Logits of [rows, vocab] with the least number for tokens that a row's guide forbids."""
    if not any(row.guide for row in rows):
        return logits
    logits, least = logits.clone(), torch.finfo(logits.dtype).min
    for index, row in enumerate(rows):
        if row.guide is not None:
            forbidden = ~row.guide.allowed().to(logits.device)
            logits[index].masked_fill_(forbidden, least)
    return logits


def _pairs(candidates: Any, rows: int) -> list[list[tuple[int, float]]]:
    """The candidates of each row, as (id, log-probability); candidates: as of Tensor.topk."""
    if candidates is None:
        return [[] for _ in range(rows)]
    values, ids = candidates[0].tolist(), candidates[1].tolist()
    return [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]


class Slots(Rows):
    """Rows with one cache, each in a slot. length: of the longest text. Models as `refillable`."""

    def __init__(
        self, model: Any, size: int, length: int, new: int, how: DrawOptions, device: torch.device
    ) -> None:
        super().__init__(model, size, new, how, device)
        self.padding = torch.zeros(size, dtype=torch.int64, device=device)
        self.cache = model.new_cache(length + SPARE_PLACES, self.padding)
        self.store: list[tuple[Tensor, ...]] = [() for _ in self.cache.layers]
        self.embeddings: Tensor | None = None  # as last_embedding of the cache

    @torch.no_grad()
    def reading(self, prompts: Iterable[Prompt], chunk: int = 0) -> Iterator[None]:
        texts = sorted(set(prompts) - self.read.keys())
        if not texts:
            return
        longest = max(map(len, texts))
        missing = [longest - len(text) for text in texts]
        padding = (torch.tensor(missing, device=self.device),) if any(missing) else ()
        cache = self.model.new_cache(longest, *padding)
        rows = [[0] * gap + list(text) for gap, text in zip(missing, texts, strict=True)]
        tokens, hidden = torch.tensor(rows, device=self.device), torch.empty(0)
        for part in tokens.split(chunk or longest, 1):
            hidden = self.model.hidden(part, cache=cache)[:, -1]
            yield
        for index, (gap, text) in enumerate(zip(missing, texts, strict=True)):
            states = [
                tuple(held[index, ..., gap:longest, :] for held in layer.held)
                for layer in cache.layers
            ]
            last = None if cache.last_embedding is None else cache.last_embedding[index]
            self.read[text] = states, hidden[index], last
        self.n_read += sum(map(len, texts))

    def _enter(self, rows: Sequence[Row]) -> Tensor:
        self._move(min(0, self.cache.length - max(len(row.prompt) for row in rows)))
        for slot, row in enumerate(rows, len(self.rows)):
            self._copy(slot, row.prompt)
        self._show(len(self.rows) + len(rows))
        return torch.stack([self.read[row.prompt][1] for row in rows])

    def _copy(self, slot: int, prompt: Prompt) -> None:
        """Copy the cache of a prompt into a slot."""
        states, _, last = self.read[prompt]
        length = self.cache.length
        for number, (layer, parts) in enumerate(zip(self.cache.layers, states, strict=True)):
            if not self.store[number]:
                self.store[number] = tuple(
                    part.new_zeros(self.size, *part.shape[:-2], layer.size, part.shape[-1])
                    for part in parts
                )
            for held, part in zip(self.store[number], parts, strict=True):
                held[slot, ..., length - len(prompt) : length, :] = part
        self.padding[slot] = length - len(prompt)
        if last is not None:
            embeddings = self.embeddings
            if embeddings is None:
                embeddings = torch.zeros(
                    self.size, *last.shape, dtype=last.dtype, device=self.device
                )
            embeddings[slot] = last
            self.embeddings = embeddings

    def _show(self, live: int) -> None:
        """Let the model see the first slots alone."""
        self.cache.padding = self.padding[:live]
        for layer, held in zip(self.cache.layers, self.store, strict=True):
            layer.padding, layer.held = self.cache.padding, tuple(part[:live] for part in held)
        if self.embeddings is not None:
            self.cache.last_embedding = self.embeddings[:live]

    def _shrunk(self) -> None:
        self._show(len(self.rows))

    def _hidden(self, unread: Tensor) -> Tensor:
        return self.model.hidden(unread, cache=self.cache)[:, -1]

    def _went_on(self) -> None:
        if self.embeddings is not None:
            self.embeddings[: len(self.rows)] = self.cache.last_embedding

    def _replace(self, slot: int, last: int) -> None:
        if slot != last:
            for held in [part for parts in self.store for part in parts]:
                held[slot, ..., : self.cache.length, :] = held[last, ..., : self.cache.length, :]
            self.padding[slot] = self.padding[last]
            if self.embeddings is not None:
                self.embeddings[slot] = self.embeddings[last]

    def _make_room(self, count: int) -> None:
        """Move texts to the front where all have much padding, or the cache is full."""
        length = self.cache.length
        least = length - max(len(row.prompt) + len(row.tokens) - 1 for row in self.rows)
        if least >= SPARE_PLACES or length + count > self.cache.max_len:
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
            self.padding.sub_(places).clamp_(min=0)


class Apart(Rows):
    """Rows with a cache each, for models whose caches have no slots (windows, states, or none)."""

    def __init__(
        self, model: Any, size: int, new: int, how: DrawOptions, device: torch.device
    ) -> None:
        super().__init__(model, size, new, how, device)
        self.cached = isinstance(model, Cached)
        self.caches: list[Any] = []

    @torch.no_grad()
    def reading(self, prompts: Iterable[Prompt], chunk: int = 0) -> Iterator[None]:
        for prompt in sorted(set(prompts) - self.read.keys()):
            cache = self.model.new_cache() if self.cached else list(prompt)
            beside = {"cache": cache} if self.cached else {}
            hidden = self.model.hidden(torch.tensor([prompt], device=self.device), **beside)
            self.read[prompt] = cache, hidden[0, -1]
            self.n_read += len(prompt)
            yield

    def _enter(self, rows: Sequence[Row]) -> Tensor:
        self.caches += [copy.deepcopy(self.read[row.prompt][0]) for row in rows]
        return torch.stack([self.read[row.prompt][1] for row in rows])

    def _hidden(self, unread: Tensor) -> Tensor:
        states = []
        for cache, token in zip(self.caches, unread, strict=True):
            if self.cached:
                hidden = self.model.hidden(token[None], cache=cache)
            else:
                cache += token.tolist()
                hidden = self.model.hidden(torch.tensor([cache], device=self.device))
            states.append(hidden[0, -1])
        return torch.stack(states)

    def _replace(self, slot: int, last: int) -> None:
        self.caches[slot] = self.caches[last]
        self.caches.pop()
