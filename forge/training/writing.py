"""What a model writes behind prompts: texts in, texts out, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.data.render import prompt_ids, turn_ends
from forge.data.tokenizer import Tokenizer
from forge.models.drawing import Sampling
from forge.models.sampling import How, continue_rows

END, STOP, LENGTH = "end", "stop", "length"
ROWS = 32  # prompts that are continued at once


Prompt = str | Sequence[Mapping[str, Any]]
"""A text to continue, or messages that the assistant answers, by the tokenizer's chat template."""


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, which begins as documents do; an empty one begins a new document."""
    if not isinstance(prompt, str):
        return prompt_ids(prompt, tokenizer)
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    return begin + tokenizer.encode(prompt) or [tokenizer.eos_id]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What follows a prompt, of how many tokens, and why it ends there: at the end of a document
    or of an answer, before a stop string, or at the longest that may be.
    """

    text: str
    tokens: int
    ended: str


@dataclass(kw_only=True)
class Speed:
    """Tokens of prompts, with the seconds until each row's first token; and all other tokens."""

    read: int = 0
    reading: float = 0.0
    written: int = 0
    writing: float = 0.0

    def __str__(self) -> str:
        def part(name: str, tokens: int, seconds: float) -> str:
            rate = f" ({tokens / seconds:,.0f} tokens/s)" if tokens and seconds else ""
            return f"{name}: {tokens:,} tokens in {seconds:.2f} s{rate}"

        prefill = part("prefill", self.read, self.reading)
        return f"{prefill}; {part('decode', self.written, self.writing)}"


class Writer:
    """Continues prompts, some at once, each by at most `tokens` tokens.

    A text ends before the first of the `stop` strings in it. agree: as of `How`. Raises ValueError
    for options that cannot be.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        tokens: int,
        stop: Sequence[str] = (),
        batch_size: int = ROWS,
        agree: Callable[[Tensor], Tensor] = lambda drawn: drawn,
        **sampling: Any,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        if tokens < 0:
            raise ValueError(f"tokens={tokens}: must be at least 0")
        if "" in stop:
            raise ValueError("stop='': every text begins with it; give a text that is not empty")
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.tokens, self.stop, self.batch_size = tokens, tuple(stop), batch_size
        self.ends: tuple[str, ...] = ()  # of answers
        self.how = How(
            sampling=Sampling(**sampling),
            eos_id=tokenizer.end_id,
            n_ids=tokenizer.vocab_size,
            ended=self._stops,
            agree=agree,
        )
        self.speed = Speed()

    def write(self, prompts: Sequence[Prompt]) -> Iterator[Written]:
        """What follows each, in order. A prompt's place among all is the number of its stream."""
        if not all(isinstance(prompt, str) for prompt in prompts):
            self.ends = turn_ends(self.tokenizer)
        encoded = [encode_prompt(self.tokenizer, prompt) for prompt in prompts]
        longest = int(self.model.max_seq_len)
        for number, ids in enumerate(encoded, 1):
            if len(ids) > longest:
                which = "the prompt" if len(encoded) == 1 else f"prompt {number}"
                limit = f"more than model.max_seq_len={longest}"
                raise ValueError(f"{which} has {len(ids)} tokens, {limit}; shorten it")
        for start in range(0, len(encoded), self.batch_size):
            texts = encoded[start : start + self.batch_size]
            rows = range(start, start + len(texts))
            made = continue_rows(self.model, texts, self.tokens, self.how, self.device, rows)
            self.speed.read += made.read
            self.speed.reading += made.reading
            self.speed.written += sum(max(len(drawn) - 1, 0) for drawn in made.tokens)
            self.speed.writing += made.writing
            yield from map(self._written, made.tokens)

    def _stops(self, row: int, drawn: list[int]) -> bool:
        """Whether a stop string ends in the last token; the whole text is read only if it may."""
        stops = (*self.stop, *self.ends)
        if not stops:
            return False
        # A stop string is of no more tokens than bytes. The first ones of a text may lose a space.
        tail = max(len(each.encode()) for each in stops) + 4
        texts = (self.tokenizer.decode(ids) for ids in (drawn[-tail:], drawn))
        return all(any(stop in text for stop in stops) for text in texts)

    def _written(self, drawn: list[int]) -> Written:
        end = self.tokenizer.end_id
        text = self.tokenizer.decode([token for token in drawn if token != end])
        stops = (*self.stop, *self.ends)
        found = min((text.find(stop) for stop in stops if stop in text), default=None)
        ended = END if drawn and drawn[-1] == end else LENGTH
        if found is not None:
            ended = END if self.ends and text.startswith(self.ends, found) else STOP
        return Written(text=text[:found], tokens=len(drawn), ended=ended)
