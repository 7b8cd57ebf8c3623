"""Conversations, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages, each with a `role` and mostly a `content`, which a chat template writes; tools that
    it may name. where: it was read, for what is said of it. untrained: numbers of the messages
    that are not to be learnt. asked: number of messages at the beginning that are the prompt of a
    row with a completion: they are learnt with data.train_on=all alone.
    """

    messages: tuple[dict[str, Any], ...]
    where: str
    tools: Any = None
    untrained: tuple[int, ...] = ()
    asked: int = 0

    def part(self, start: int, stop: int) -> Conversation:
        """The messages from one to another, with what is said of these."""
        own = tuple(turn - start for turn in self.untrained if start <= turn < stop)
        asked = max(min(self.asked, stop) - start, 0)
        return replace(self, messages=self.messages[start:stop], untrained=own, asked=asked)

    @property
    def text(self) -> str:
        """What is said, which a tokenizer may learn from."""
        said = (message.get("content") for message in self.messages)
        return "\n".join(one for one in said if isinstance(one, str))

    @property
    def content(self) -> bytes:
        """All of it but where it was read."""
        all_of_it = [self.messages, self.tools, self.untrained, self.asked]
        return json.dumps(all_of_it, ensure_ascii=False, default=str).encode()


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """tokens: uint32 [tokens]. counted: bool [tokens], which of them are learnt."""

    tokens: np.ndarray
    counted: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


class Renders(Protocol):
    """How conversations become the tokens of a tokenizer: a forge.data.tokenizers.render.Render."""

    def source(self, tokenizer: Any) -> str:
        """The chat template that is used with a tokenizer, or with a section of one."""
        ...

    def __call__(
        self, conversations: Sequence[Conversation], tokenizer: Any, /
    ) -> list[Rendered]: ...
