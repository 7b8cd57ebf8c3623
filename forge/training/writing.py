"""Text generation for prompts: texts in, texts out, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forge.data.tokenizers.render import encode_prompt, stated_ends, turn_end_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.predicting.speculate import speculate, why_not_speculate
from forge.models.reading_mode import evaluating
from forge.models.sampling import Continued, DrawOptions, continue_rows
from forge.models.token_distribution import Sampling

END, STOP, LENGTH = "end", "stop", "length"
ROWS = 32  # prompts in a batch


Prompt = str | Sequence[Mapping[str, Any]]
"""A text to continue, or messages for the assistant, by the tokenizer's chat template."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The continuation of a prompt, its number of tokens, and the reason of its end.

    ended: at the end of a document or answer, before a stop string, or at the length limit. sample:
    the number among several. ids, logprobs: of all tokens, the ending token too, if asked for.
    """

    text: str
    tokens: int
    ended: str
    sample: int | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None

    def row(self) -> dict[str, Any]:
        """The values present, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(kw_only=True)
class Speed:
    """Tokens of prompts, with the seconds until each row's first token; and all other tokens.

    drafted, accepted: tokens drafted by the model's own modules. With drafts the seconds of prompts
    are among those of writing.
    """

    read: int = 0
    reading: float = 0.0
    written: int = 0
    writing: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def __str__(self) -> str:
        def part(name: str, tokens: int, seconds: float) -> str:
            rate = f" ({tokens / seconds:,.0f} tokens/s)" if tokens and seconds else ""
            return f"{name}: {tokens:,} tokens in {seconds:.2f} s{rate}"

        prefill = part("prefill", self.read, self.reading)
        text = f"{prefill}; {part('decode', self.written, self.writing)}"
        if not self.drafted:
            return text
        share = self.accepted / self.drafted
        return f"{text}; {self.accepted:,} of {self.drafted:,} drafts accepted ({share:.0%})"


class Writer:
    """Continues prompts in batches, each by at most `tokens` tokens, `n` times.

    A text ends before the first of the `stop` strings. logprobs, agree: as in
    `DrawOptions`. Raises ValueError for impossible options.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        tokens: int,
        n: int = 1,
        logprobs: bool = False,
        stop: Sequence[str] = (),
        batch_size: int = ROWS,
        speculate: bool = False,
        agree: Callable[[Tensor], Tensor] = lambda drawn: drawn,
        **sampling: Any,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        if n < 1:
            raise ValueError(f"n={n}: must be at least 1")
        if tokens < 0:
            raise ValueError(f"tokens={tokens}: must be at least 0")
        if "" in stop:
            raise ValueError("stop='': every text begins with it; give a text that is not empty")
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.tokens, self.stop, self.batch_size = tokens, tuple(stop), batch_size
        self.n = n
        self.how = DrawOptions(
            sampling=Sampling(**sampling),
            eos_id=tokenizer.end_id,
            n_ids=tokenizer.vocab_size,
            ended=self._stops if stop else None,
            agree=agree,
            logprobs=logprobs,
        )
        if n > 1 and self.how.sampling.temperature == 0:
            raise ValueError(f"n={n}: with temperature=0 all would be the same; give it above 0")
        if speculate:
            self._check_drafts()
        self.speculate = speculate
        self.speed = Speed()

    def write(self, prompts: Sequence[Prompt]) -> Iterator[Written]:
        """Continue each prompt, in order, `n` times.

        A prompt's index is the number of its random stream; streams of further samples follow.
        """
        if not all(isinstance(prompt, str) for prompt in prompts):
            ends = turn_end_ids(self.tokenizer).union(stated_ends(self.tokenizer))
            self.how = replace(self.how, ends=ends)
        encoded = [encode_prompt(self.tokenizer, prompt) for prompt in prompts]
        longest = int(self.model.max_seq_len)
        for number, ids in enumerate(encoded, 1):
            if len(ids) > longest:
                which = "the prompt" if len(encoded) == 1 else f"prompt {number}"
                limit = f"more than model.max_seq_len={longest}"
                raise ValueError(f"{which} has {len(ids)} tokens, {limit}; shorten it")
        rows = [(number, sample) for number in range(len(encoded)) for sample in range(self.n)]
        for start in range(0, len(rows), self.batch_size):
            some = rows[start : start + self.batch_size]
            texts = [encoded[number] for number, _ in some]
            # The first sample of a prompt draws from the stream of a single sample.
            numbers = [f"{row} {sample}" if sample else row for row, sample in some]
            batch = self._continued(texts, numbers)
            self.speed.read += batch.read
            self.speed.reading += batch.reading
            self.speed.written += sum(max(len(drawn) - 1, 0) for drawn in batch.tokens)
            self.speed.writing += batch.writing
            for index, (_, sample) in enumerate(some):
                text = self._written(batch.tokens[index])
                extra: dict[str, Any] = {"sample": sample} if self.n > 1 else {}
                if batch.logprobs:
                    extra |= {"ids": batch.tokens[index], "logprobs": batch.logprobs[index]}
                yield replace(text, **extra)

    def _check_drafts(self) -> None:
        """Raises ValueError where drafts would not give the text of plain writing."""
        how = self.how
        if how.sampling.temperature or how.sampling.repetition_penalty != 1:
            raise ValueError("speculate: it is for temperature=0 without repetition_penalty")
        if how.logprobs:
            raise ValueError("speculate: it gives no logprobs; leave them out")
        if reason := why_not_speculate(self.model):
            raise ValueError(f"speculate: {reason}")

    def _continued(self, texts: Sequence[Sequence[int]], numbers: Sequence[object]) -> Continued:
        """Continue a batch, or with drafts each of its texts by itself."""
        if not self.speculate:
            return continue_rows(self.model, texts, self.tokens, self.how, self.device, numbers)
        begun, how = time.perf_counter(), self.how
        result = Continued(tokens=[], read=sum(map(len, texts)))
        for row, text in enumerate(texts):
            ends, ended = how.ends | {self.tokenizer.end_id}, how.ended
            stops = None if ended is None else partial(ended, row)
            options: dict[str, Any] = {"n_ids": how.n_ids, "ends": ends, "ended": stops}
            with evaluating(self.model):
                new = speculate(self.model, text, self.tokens, self.device, **options)
            result.tokens.append(new.tokens)
            self.speed.drafted += new.drafted
            self.speed.accepted += new.accepted
        result.writing = time.perf_counter() - begun
        return result

    def _stops(self, row: int, drawn: list[int]) -> bool:
        """Whether a stop string ends in the last token.

        The whole text is decoded only if the last tokens contain a stop string.
        """
        # A stop string has no more tokens than bytes. The first tokens of a text may lose a space.
        tail = max(len(stop.encode()) for stop in self.stop) + 4
        texts = (self.tokenizer.decode(ids) for ids in (drawn[-tail:], drawn))
        return all(any(stop in text for stop in self.stop) for text in texts)

    def _written(self, drawn: list[int]) -> Written:
        ends = self.how.ends | {self.tokenizer.end_id}
        text = self.tokenizer.decode([token for token in drawn if token not in ends])
        begins = min((text.find(stop) for stop in self.stop if stop in text), default=None)
        ended = END if drawn and drawn[-1] in ends else LENGTH
        ended = ended if begins is None else STOP
        return Written(text=text[:begins], tokens=len(drawn), ended=ended)
