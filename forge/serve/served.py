"""A model that is served: its engine, its name, and the requests that a checked body makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forge.data.tokenizers.render import encode_prompt, stated_ends, turn_end_ids
from forge.serve.asking import Asked, Limits, Refusal
from forge.serve.engine import Engine, Piece, Request


class Served:
    """A model behind an engine. name: in requests. talks: whether it was trained on chats."""

    def __init__(self, engine: Engine, name: str, limits: Limits, *, talks: bool) -> None:
        self.engine, self.name, self.talks = engine, name, talks
        self.limits = replace(limits, tokens=engine.length, n=min(limits.n, engine.slots))
        self.tokenizer, self.created = engine.tokenizer, int(time.time())
        of_answers = turn_end_ids(self.tokenizer).union(stated_ends(self.tokenizer))
        self.ends = {False: frozenset({self.tokenizer.end_id})}
        self.ends[True] = self.ends[False] | of_answers

    def about(self) -> dict[str, Any]:
        """The model as /v1/models shows it."""
        about = {"chat": self.talks, "max_tokens": self.engine.length}
        head = {"id": self.name, "object": "model", "created": self.created}
        return {**head, "owned_by": "forge", "forge": about}

    def counts(self) -> dict[str, float]:
        """Counts of the engine, by name."""
        engine = self.engine
        return {
            "prompt_tokens_total": engine.counts["prompt_tokens"],
            "generated_tokens_total": engine.counts["tokens"],
            "cancelled_answers_total": engine.counts["cancelled"],
            "first_token_seconds_sum": engine.first_seconds,
            "first_token_seconds_count": engine.counts["first_tokens"],
            "live_answers": engine.live,
            "waiting_requests": engine.waiting,
            "slots": engine.slots,
        }

    def encoded(self, asked: Asked) -> tuple[int, ...]:
        """The prompt's token ids. Raises Refusal where there is no room for an answer."""
        prompt, name = asked.prompt, "messages" if _is_chat(asked.prompt) else "prompt"
        if isinstance(prompt, list) and not _is_chat(prompt):
            ids = prompt
            if not all(0 <= token < self.tokenizer.vocab_size for token in ids):
                message = f"prompt: ids are from 0 to {self.tokenizer.vocab_size - 1}"
                raise Refusal(400, message, param=name)
        else:
            try:
                ids = encode_prompt(self.tokenizer, prompt)
            except ValueError as error:
                raise Refusal(400, f"{name}: {error}", param=name) from None
        if len(ids) >= self.limits.tokens:
            room = f"{self.limits.tokens} tokens with its answer at most"
            raise Refusal(400, f"{name}: {len(ids)} tokens, and {room}", param=name)
        return tuple(ids)

    def request(
        self, asked: Asked, prompt: tuple[int, ...], put: Callable[[Piece], None], *, chat: bool
    ) -> Request:
        """The engine's request of a checked body. put: takes the pieces of its answers."""
        room = self.limits.tokens - len(prompt)
        return Request(
            prompt=prompt,
            put=put,
            most=min(room, asked.most or room),
            sampling=asked.sampling,
            ends=self.ends[chat],
            stop=asked.stop,
            n=asked.n,
            top=asked.top,
        )


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
