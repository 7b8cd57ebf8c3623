"""Continuation of texts: several rows of tokens, of any lengths, each row to its own end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forge.models.cache import can_select, select_rows
from forge.models.contract import Cached, LanguageModel
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.models.token_distribution import (
    NONE,
    NOT_FINITE,
    Sampling,
    logprobs_of,
    logprobs_within,
    uniforms,
)

Ended = Callable[[int, list[int]], bool]
FILLER = 0  # id of a token that nobody reads
LOOK_EVERY = 16  # tokens that a GPU draws before it is waited for


@dataclass(kw_only=True)
class Continued:
    """The continuations of all rows.

    tokens: drawn tokens of each row, the ending token too. logprobs: of each drawn token, on
    request; support: with them the tokens that a cut left to draw from, at each token. read: number
    of tokens of all prompts, equal prompts counted once; reading, writing: seconds until the first
    token of each row, and for all later tokens.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]] = field(default_factory=list)
    support: list[list[list[int]]] = field(default_factory=list)
    read: int = 0
    reading: float = 0.0
    writing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Options of a continuation, for all rows.

    ends: ids that end a row, beside eos_id. n_ids: number of ids of the tokenizer; later rows of
    the table, trained by no text, are never drawn. use_cache: without a cache every token reads the
    whole text again. ended: whether a row, by its index, ends with the tokens drawn. agree: turns
    the tokens [batch, 1] drawn by this process into the tokens taken by all processes; processes
    sharing a model must draw the same. logprobs: whether to record the model's log-probability of
    each drawn token, over all rows of the table, before temperature, cuts and penalties.
    logprobs_at: temperature of these log-probabilities. as_drawn: they are of the distribution that
    is drawn from instead, after temperature and cuts. every: number of tokens drawn between two
    looks at the results; a look waits for the device, and tokens after a row's end are thrown
    away. null = 1 on a CPU, else 16.
    """

    sampling: Sampling = field(default_factory=Sampling)
    eos_id: int | None = None
    ends: frozenset[int] = frozenset()
    n_ids: int | None = None
    use_cache: bool = True
    ended: Ended | None = None
    agree: Callable[[Tensor], Tensor] = lambda drawn: drawn
    logprobs: bool = False
    logprobs_at: float = 1.0
    as_drawn: bool = False
    every: int | None = None

    @property
    def with_support(self) -> bool:
        """Whether the tokens left to draw from are recorded."""
        return self.logprobs and self.as_drawn and self.sampling.cuts


def generate(
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    eos_id: int | None = None,
    n_ids: int | None = None,
    use_cache: bool = True,
    agree: Callable[[Tensor], Tensor] = lambda drawn: drawn,
    **sampling: Any,
) -> Tensor:
    """Continue tokens: [batch, prompt] -> [batch, prompt + new], with new <= max_new_tokens.

    As `continue_rows`; shorter rows are padded with eos_id. sampling: the options of `Sampling`.
    """
    options = DrawOptions(
        sampling=Sampling(**sampling), eos_id=eos_id, n_ids=n_ids, use_cache=use_cache, agree=agree
    )
    drawn = continue_rows(model, tokens.tolist(), max_new_tokens, options, tokens.device).tokens
    longest = max(map(len, drawn))
    filled = [row + [eos_id] * (longest - len(row)) for row in drawn]
    new = torch.tensor(filled, dtype=tokens.dtype, device=tokens.device)
    return torch.cat((tokens, new.view(len(tokens), longest)), dim=1)


@torch.no_grad()
def continue_rows(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    how: DrawOptions,
    device: torch.device,
    numbers: Sequence[object] | None = None,
) -> Continued:
    """Draw at most max_new_tokens for each prompt of token ids.

    A row stops at eos_id, at an id of `ends`, where `ended` says so, and at the model's
    max_seq_len, and then leaves the batch. A row draws from a stream seeded by the seed and the
    row's number, so other rows have no influence, apart from the rounding of sums of another shape.
    numbers: null = 0, 1, ... Equal prompts are read once, where a cache can be copied.

    Raises FloatingPointError for logits that are not finite, ValueError for a prompt without tokens
    or with more than max_seq_len.
    """
    lengths, limit = list(map(len, prompts)), model.max_seq_len
    for length in lengths:
        if not 1 <= length <= limit:
            message = f"a prompt has 1 to that many tokens, not {length}"
            raise ValueError(f"model.max_seq_len={limit}: {message}")
    numbers = range(len(prompts)) if numbers is None else numbers
    cached = how.use_cache and isinstance(model, Cached)
    if cached and len(set(lengths)) > 1 and not getattr(model, "reads_padding", False):
        return _by_length(model, prompts, max_new_tokens, how, device, numbers)
    most = [min(max_new_tokens, limit - length) for length in lengths]
    result = Continued(tokens=[[] for _ in prompts], read=sum(lengths))
    result.logprobs = [[] for _ in prompts] if how.logprobs else []
    result.support = [[] for _ in prompts] if how.with_support else []
    going = [row for row, count in enumerate(most) if count > 0]
    if going:
        texts = [list(prompts[row]) for row in going]
        reader = (_CachedReader if cached else _UncachedReader)(model, texts, max(most), device)
        draws = uniforms(how.sampling.seed, [numbers[row] for row in going], max(most), device)
        with evaluating(model):  # type: ignore[arg-type]
            _Batch(reader, how, going, texts, draws).write(result, most)
    return result


def _by_length(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    how: DrawOptions,
    device: torch.device,
    numbers: Sequence[object],
) -> Continued:
    """Continue rows of equal length at a time, for a model that cannot read padded rows."""
    result = Continued(tokens=[[] for _ in prompts])
    result.logprobs = [[] for _ in prompts] if how.logprobs else []
    result.support = [[] for _ in prompts] if how.with_support else []
    for length in sorted(set(map(len, prompts))):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        part = continue_rows(
            model,
            [prompts[row] for row in rows],
            max_new_tokens,
            replace(how, ended=how.ended and partial(_of_rows, how.ended, rows)),
            device,
            [numbers[row] for row in rows],
        )
        for index, row in enumerate(rows):
            result.tokens[row] = part.tokens[index]
            if how.logprobs:
                result.logprobs[row] = part.logprobs[index]
            if how.with_support:
                result.support[row] = part.support[index]
        result.read += part.read
        result.reading += part.reading
        result.writing += part.writing
    return result


def _of_rows(ended: Ended, rows: list[int], place: int, drawn: list[int]) -> bool:
    return ended(rows[place], drawn)


class _Batch:
    """The batch of unfinished rows. Ended rows leave the batch, where the reader can drop rows."""

    def __init__(
        self,
        reader: _CachedReader | _UncachedReader,
        how: DrawOptions,
        rows: list[int],
        texts: list[list[int]],
        draws: Tensor,
    ) -> None:
        self.reader, self.how, self.texts, self.draws = reader, how, texts, draws
        self.places = {row: slot for slot, row in enumerate(rows)}
        self.ends = how.ends if how.eos_id is None else how.ends | {how.eos_id}
        self.had: Tensor | None = None
        self.drawn: list[Tensor] = []  # since the last look
        self.logprobs: list[Tensor] = []
        self.support: list[Tensor] = []

    def write(self, result: Continued, most: Sequence[int]) -> None:
        """Draw tokens until all rows have ended. The first token is looked at alone, for its time;
        no row continues beyond its number in `most`.
        """
        begun, position = time.perf_counter(), 0
        every = self.how.every or (1 if self.draws.device.type == "cpu" else LOOK_EVERY)
        while self.places:
            until = min(
                [position + (every if position else 1), *(most[row] for row in self.places)]
            )
            for now in range(position, until):
                self.draw(now)
            stay = self.look(result, most)
            if position == 0:
                result.read = self.reader.read
                result.reading, begun = time.perf_counter() - begun, time.perf_counter()
            if 0 < len(stay) < len(self.places) and self.reader.keep(list(stay.values())):
                index = torch.tensor(list(stay.values()), device=self.draws.device)
                self.draws = self.draws[index]
                self.had = None if self.had is None else self.had[index]
                stay = {row: slot for slot, row in enumerate(stay)}
            self.places, position = stay, until
        result.writing = time.perf_counter() - begun

    def draw(self, place: int) -> None:
        """Draw a token for each row, without a wait for the device."""
        options, hidden = self.how, self.reader.hidden()
        of_table = head_of(self.reader.model).logits(hidden)
        logits = of_table[:, : options.n_ids]
        if self.had is None and options.sampling.repetition_penalty != 1:
            self.had = _had(self.texts, logits)
        drawn = options.agree(
            options.sampling.draw(logits, self.draws[:, place], self.had).unsqueeze(-1)
        )
        self.drawn.append(drawn)
        # NONE is negative: the row fails at the next look, but must index until then.
        drawn = drawn.clamp(min=FILLER)
        if options.logprobs:
            self.logprobs.append(self._logprobs(of_table, logits, drawn))
        if self.had is not None:
            self.had.scatter_(1, drawn, True)
        self.reader.add(drawn)

    def _logprobs(self, of_table: Tensor, logits: Tensor, drawn: Tensor) -> Tensor:
        options, sampling = self.how, self.how.sampling
        if not options.as_drawn or not sampling.temperature:
            return logprobs_of(of_table / options.logprobs_at, drawn)
        if not sampling.cuts:
            return logprobs_of(of_table / sampling.temperature, drawn)
        support = sampling.support(logits)
        self.support.append(support)
        return logprobs_within(of_table / sampling.temperature, drawn, support)

    def look(self, result: Continued, most: Sequence[int]) -> dict[int, int]:
        """Give each row the tokens drawn; returns the unfinished rows, with their indices."""
        drawn = torch.cat(self.drawn, 1).tolist()
        logprobs = torch.cat(self.logprobs, 1).tolist() if self.logprobs else None
        support = torch.stack(self.support, 1).tolist() if self.support else None
        self.drawn, self.logprobs, self.support, stay = [], [], [], {}
        for row, slot in self.places.items():
            tokens = result.tokens[row]
            count, over = self._take(row, drawn[slot], tokens, most[row])
            if logprobs is not None:
                result.logprobs[row] += logprobs[slot][:count]
            if support is not None:
                result.support[row] += [_present(ids) for ids in support[slot][:count]]
            if not over:
                stay[row] = slot
        return stay

    def _take(self, row: int, new: list[int], tokens: list[int], most: int) -> tuple[int, bool]:
        """Add tokens to a row, up to an ending token; returns their number, and whether the row
        ended.
        """
        ended = self.how.ended
        for count, token in enumerate(new, 1):
            if token == NONE:
                raise FloatingPointError(NOT_FINITE)
            tokens.append(token)
            if len(tokens) == most or token in self.ends or (ended and ended(row, tokens)):
                return count, True
        return len(new), False


def _present(ids: list[int]) -> list[int]:
    return [token for token in ids if token != NONE]


def _had(prompts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Mark the tokens of each prompt: bool, as logits."""
    had = torch.zeros_like(logits, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        had[row, torch.tensor(prompt, device=logits.device)] = True
    return had


class _CachedReader:
    """Reads rows with a cache, shorter rows padded in front. Equal prompts are read once, and the
    cache of the prompt is copied.
    """

    def __init__(self, model: Any, texts: list[list[int]], most: int, device: torch.device) -> None:
        different = list(dict.fromkeys(map(tuple, texts)))
        longest = max(map(len, different))
        missing = [longest - len(text) for text in different]
        padding = (torch.tensor(missing, device=device),) if any(missing) else ()
        self.model, self.device = model, device
        self.cache, self.copies = model.new_cache(longest + most, *padding), None
        if len(different) < len(texts):
            if can_select(self.cache):
                numbers = {text: number for number, text in enumerate(different)}
                copies = [numbers[tuple(text)] for text in texts]
                self.copies = torch.tensor(copies, device=device)
            else:
                different = [tuple(text) for text in texts]
        self.read = sum(map(len, different))
        rows = [[FILLER] * (longest - len(text)) + list(text) for text in different]
        self.unread = torch.tensor(rows, device=device)

    def hidden(self) -> Tensor:
        """Hidden states of each row's last token, [batch, dim]."""
        hidden = self.model.hidden(self.unread, cache=self.cache)[:, -1]
        # After the prompts each row goes its own way, with a cache of its own.
        if self.copies is not None:
            select_rows(self.cache, self.copies)
            hidden, self.copies = hidden[self.copies], None
        return hidden

    def add(self, drawn: Tensor) -> None:
        """Add the next token of each row, [batch, 1]; ended rows take any token."""
        self.unread = drawn

    def keep(self, places: list[int]) -> bool:
        """Drop all rows but `places`; False where the cache cannot drop rows."""
        if not can_select(self.cache):
            return False
        index = torch.tensor(places, device=self.device)
        select_rows(self.cache, index)
        self.unread = self.unread[index]
        return True


class _UncachedReader:
    """Reads whole texts without a cache; models are causal, so filler after a text is unseen."""

    def __init__(self, model: Any, texts: list[list[int]], most: int, device: torch.device) -> None:
        self.model, self.device, self.sizes = model, device, list(map(len, texts))
        self.read = sum(self.sizes)
        width = max(self.sizes) + most
        rows = [text + [FILLER] * (width - len(text)) for text in texts]
        self.ids = torch.tensor(rows, device=device)
        self.lengths = torch.tensor(self.sizes, device=device)

    def hidden(self) -> Tensor:
        hidden = self.model.hidden(self.ids[:, : max(self.sizes)])
        return hidden[torch.arange(len(self.sizes), device=self.device), self.lengths - 1]

    def add(self, drawn: Tensor) -> None:
        self.ids.scatter_(1, self.lengths[:, None], drawn)
        self.lengths = self.lengths + 1
        self.sizes = [size + 1 for size in self.sizes]

    def keep(self, places: list[int]) -> bool:
        index = torch.tensor(places, device=self.device)
        self.ids, self.lengths = self.ids[index], self.lengths[index]
        self.sizes = [self.sizes[slot] for slot in places]
        return True
