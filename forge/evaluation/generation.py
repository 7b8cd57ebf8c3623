"""Continuations of prompts by forge's sampler: a text depends on its own prompt alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from hashlib import blake2b
from typing import Any, NamedTuple

import torch

from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation.encoding import first_id
from forge.evaluation.parts import Agree, continued_in_parts
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.token_distribution import Sampling
from forge.parallel.ranks import Ranks
from forge.tasks.item import Prompt

ROWS = 32


class Asked(NamedTuple):
    """One sample of a prompt, in token ids."""

    prompt: Prompt
    sample: int
    ids: tuple[int, ...]

    @property
    def key(self) -> str:
        """Hash of all that the text depends on, in hex; also the name of its random stream."""
        content = (*astuple(self.prompt)[1:], self.sample, self.ids)
        return blake2b(repr(content).encode(), digest_size=16).hexdigest()


def asked(prompt: Prompt, tokenizer: Tokenizer, longest: int) -> list[Asked]:
    """Each sample of a prompt. Its beginning is left out where the model has no room for it and
    `max_tokens` more, as lm-eval does, so long as a token of it is left.
    """
    begin = () if tokenizer.begin_id is None else (tokenizer.begin_id,)
    ids = (*begin, *tokenizer.encode(prompt.text)) or (first_id(tokenizer),)
    room = max(longest - prompt.max_tokens, 1)
    return [Asked(prompt, sample, ids[-room:]) for sample in range(prompt.samples)]


def generated(
    model: Any,
    tokenizer: Tokenizer,
    requests: Sequence[Asked],
    *,
    device: torch.device,
    ranks: Ranks | None = None,
) -> list[str]:
    """The text of each request, at most `ROWS` of a rank at once, each cut before its first stop
    string. All ranks call this alike; each part of the batch continues its own requests.
    """
    ranks = ranks or Ranks()

    def write(some: Sequence[Asked], agree: Agree) -> list[str]:
        return _written(model, tokenizer, some, device, agree)

    return continued_in_parts(model, device, ranks, requests, write)


def _written(
    model: Any, tokenizer: Tokenizer, requests: Sequence[Asked], device: torch.device, agree: Agree
) -> list[str]:
    """The text of each request of this rank."""
    by_options: dict[Any, list[int]] = {}
    for index, request in enumerate(requests):
        prompt = request.prompt
        options = (prompt.stop, prompt.max_tokens, prompt.temperature, prompt.seed)
        by_options.setdefault(options, []).append(index)
    texts = [""] * len(requests)
    for indices in by_options.values():
        for start in range(0, len(indices), ROWS):
            some = indices[start : start + ROWS]
            batch = [requests[index] for index in some]
            written = _batch(model, tokenizer, batch, device, agree)
            for index, text in zip(some, written, strict=True):
                texts[index] = text
    return texts


def _batch(
    model: Any, tokenizer: Tokenizer, batch: Sequence[Asked], device: torch.device, agree: Agree
) -> list[str]:
    """Continue prompts with equal options."""
    prompt = batch[0].prompt

    # A stop string has no more tokens than bytes; the first tokens of a text may lose a space.
    tail = max((len(stop.encode()) for stop in prompt.stop), default=0) + 4

    def ended(row: int, drawn: list[int]) -> bool:
        texts = (tokenizer.decode(ids) for ids in (drawn[-tail:], drawn))
        return all(any(stop in text for stop in prompt.stop) for text in texts)

    how = DrawOptions(
        sampling=Sampling(temperature=prompt.temperature, seed=prompt.seed),
        eos_id=tokenizer.end_id,
        n_ids=tokenizer.vocab_size,
        ended=ended if prompt.stop else None,
        agree=agree,
    )
    ids, numbers = [request.ids for request in batch], [request.key for request in batch]
    drawn = continue_rows(model, ids, prompt.max_tokens, how, device, numbers).tokens
    texts = []
    for tokens in drawn:
        text = tokenizer.decode([token for token in tokens if token != tokenizer.end_id])
        ends = [text.find(stop) for stop in prompt.stop if stop in text]
        texts.append(text[: min(ends)] if ends else text)
    return texts
