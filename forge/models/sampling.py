"""Texts that go on: several rows of tokens, of any lengths, each until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from forge.models.contract import Cached, LanguageModel
from forge.models.drawing import NONE, NOT_FINITE, Sampling, uniforms
from forge.models.head import head_of
from forge.models.modes import evaluating

FILLER = 0  # id of a token that nobody reads


@dataclass(kw_only=True)
class Continued:
    """tokens: what was drawn for each row, with eos_id where that ended it. read: tokens of all
    prompts; reading, writing: seconds until the first token of each row, and for all others.
    """

    tokens: list[list[int]]
    read: int = 0
    reading: float = 0.0
    writing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class How:
    """What all rows are continued with.

    n_ids: number of ids of the tokenizer; later rows of the table, which no text has trained, are
    never drawn. use_cache: without it every token reads the whole text again. ended: whether a row,
    by its place, ends with what was drawn for it. agree: gives the tokens [batch, 1] that all
    processes take where this one drew some; processes that share a model must draw the same.
    """

    sampling: Sampling = field(default_factory=Sampling)
    eos_id: int | None = None
    n_ids: int | None = None
    use_cache: bool = True
    ended: Callable[[int, list[int]], bool] = lambda row, drawn: False
    agree: Callable[[Tensor], Tensor] = lambda drawn: drawn


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

    As `continue_rows`; rows that ended sooner than others are filled up with eos_id. sampling: the
    options of `Sampling`.
    """
    how = How(
        sampling=Sampling(**sampling), eos_id=eos_id, n_ids=n_ids, use_cache=use_cache, agree=agree
    )
    drawn = continue_rows(model, tokens.tolist(), max_new_tokens, how, tokens.device).tokens
    longest = max(map(len, drawn))
    filled = [row + [eos_id] * (longest - len(row)) for row in drawn]
    new = torch.tensor(filled, dtype=tokens.dtype, device=tokens.device)
    return torch.cat((tokens, new.view(len(tokens), longest)), dim=1)


@torch.no_grad()
def continue_rows(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    how: How,
    device: torch.device,
    numbers: Sequence[int] | None = None,
) -> Continued:
    """Draw at most max_new_tokens for each prompt of token ids.

    A row stops at eos_id, where it has `ended`, and at the model's max_seq_len. It draws from a
    stream of its own, of the seed and its number, so that other rows do not change it, but for how
    sums of another shape are rounded. numbers: null = 0, 1, ...

    Raises FloatingPointError for logits that are not finite, ValueError for a prompt without tokens
    or with more than max_seq_len.
    """
    lengths, limit = list(map(len, prompts)), model.max_seq_len
    for length in lengths:
        if not 1 <= length <= limit:
            what = f"a prompt has 1 to that many tokens, not {length}"
            raise ValueError(f"model.max_seq_len={limit}: {what}")
    numbers = range(len(prompts)) if numbers is None else numbers
    cached = how.use_cache and isinstance(model, Cached)
    if cached and len(set(lengths)) > 1 and not getattr(model, "reads_padding", False):
        return _by_length(model, prompts, max_new_tokens, how, device, numbers)
    most = [min(max_new_tokens, limit - length) for length in lengths]
    reader = (_Going if cached else _Again)(model, prompts, max(most), device)
    draws = uniforms(how.sampling.seed, numbers, max(most), device)
    had: Tensor | None = None
    result = Continued(tokens=[[] for _ in prompts], read=sum(lengths))
    going = [row for row, count in enumerate(most) if count > 0]
    begun = time.perf_counter()
    with evaluating(model):  # type: ignore[arg-type]
        while going:
            hidden = reader.hidden()
            logits = head_of(model).logits(hidden)[:, : how.n_ids]
            if had is None and how.sampling.repetition_penalty != 1:
                had = _had(prompts, logits)
            place = len(result.tokens[going[0]])
            drawn = how.agree(how.sampling.draw(logits, draws[:, place], had).unsqueeze(-1))
            ids = drawn.flatten().tolist()
            if any(ids[row] == NONE for row in going):
                raise FloatingPointError(NOT_FINITE)
            for row in going:
                result.tokens[row].append(ids[row])
            drawn = drawn.clamp(min=FILLER)
            if had is not None:
                had.scatter_(1, drawn, True)
            going = [row for row in going if not _over(row, result.tokens[row], most[row], how)]
            reader.add(drawn, going)
            if place == 0:
                result.reading, begun = time.perf_counter() - begun, time.perf_counter()
    result.writing = time.perf_counter() - begun
    return result


def _over(row: int, drawn: list[int], most: int, how: How) -> bool:
    return len(drawn) == most or drawn[-1] == how.eos_id or how.ended(row, drawn)


def _had(prompts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Which tokens each prompt has: bool, as logits."""
    had = torch.zeros_like(logits, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        had[row, torch.tensor(prompt, device=logits.device)] = True
    return had


def _by_length(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    how: How,
    device: torch.device,
    numbers: Sequence[int],
) -> Continued:
    """Rows of one length at a time, for a model that does not read what is filled up."""
    result = Continued(tokens=[[] for _ in prompts])
    for length in sorted(set(map(len, prompts))):
        rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
        part = continue_rows(
            model,
            [prompts[row] for row in rows],
            max_new_tokens,
            replace(how, ended=lambda row, drawn, rows=rows: how.ended(rows[row], drawn)),
            device,
            [numbers[row] for row in rows],
        )
        for row, drawn in zip(rows, part.tokens, strict=True):
            result.tokens[row] = drawn
        result.read += part.read
        result.reading += part.reading
        result.writing += part.writing
    return result


class _Going:
    """Rows that go on from what a cache has of them: shorter ones begin later."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], most: int, device: torch.device
    ) -> None:
        lengths = torch.tensor(list(map(len, prompts)))
        longest = int(lengths.max())
        rows = [[FILLER] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        self.model, self.unread = model, torch.tensor(rows, device=device)
        ragged = bool((lengths < longest).any())
        padding = ((longest - lengths).to(device),) if ragged else ()
        self.cache = model.new_cache(longest + most, *padding)

    def hidden(self) -> Tensor:
        """What the head reads of each row's last token, [batch, dim]."""
        return self.model.hidden(self.unread, cache=self.cache)[:, -1]

    def add(self, drawn: Tensor, going: list[int]) -> None:
        """The next token of each row, [batch, 1]; rows that do not go on take any."""
        self.unread = drawn


class _Again:
    """The same without a cache: whole texts, that later tokens of longer rows do not reach."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], most: int, device: torch.device
    ) -> None:
        self.model, self.device = model, device
        self.texts = [list(prompt) for prompt in prompts]

    def hidden(self) -> Tensor:
        longest = max(map(len, self.texts))
        rows = [text + [FILLER] * (longest - len(text)) for text in self.texts]
        last = torch.tensor([len(text) - 1 for text in self.texts], device=self.device)
        hidden = self.model.hidden(torch.tensor(rows, device=self.device))
        return hidden[torch.arange(len(rows), device=self.device), last]

    def add(self, drawn: Tensor, going: list[int]) -> None:
        tokens = drawn.flatten().tolist()
        for row in going:
            self.texts[row].append(tokens[row])
