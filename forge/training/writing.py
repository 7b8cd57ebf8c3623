"""What a model writes behind prompts: texts in, texts out, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.data.tokenizer import Tokenizer
from forge.models.drawing import Sampling
from forge.models.sampling import How, continue_rows

END, STOP, LENGTH = "end", "stop", "length"
ROWS = 32  # prompts that are continued at once


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt, which begins as documents do; an empty one begins a new document."""
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    return begin + tokenizer.encode(prompt) or [tokenizer.eos_id]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What follows a prompt, of how many tokens, and why it ends there: at the end of a document,
    before a stop string, or at the longest that may be.
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
        self.how = How(
            sampling=Sampling(**sampling),
            eos_id=tokenizer.end_id,
            n_ids=tokenizer.vocab_size,
            ended=self._stops if stop else lambda row, drawn: False,
            agree=agree,
        )
        # A stop string is of no more tokens than bytes. The first ones of a text may lose a space.
        self.tail = max((len(each.encode()) for each in stop), default=0) + 4
        self.speed = Speed()

    def write(self, prompts: Sequence[str]) -> Iterator[Written]:
        """What follows each, in order. A prompt's place among all is the number of its stream."""
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
        return self._stop_in(drawn[-self.tail :]) and self._stop_in(drawn)

    def _stop_in(self, ids: list[int]) -> bool:
        text = self.tokenizer.decode(ids)
        return any(stop in text for stop in self.stop)

    def _written(self, drawn: list[int]) -> Written:
        end = self.tokenizer.end_id
        text = self.tokenizer.decode([token for token in drawn if token != end])
        found = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        ended = STOP if found else END if drawn and drawn[-1] == end else LENGTH
        return Written(text=text[: min(found)] if found else text, tokens=len(drawn), ended=ended)
