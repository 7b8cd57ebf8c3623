"""Conversations, and their tokens once rendered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages, each with a `role` and mostly a `content`, for a chat template to write, and the
    tools offered. where: file and row, for error messages. untrained: numbers of the messages not
    to be learnt. asked: number of messages at the beginning from the prompt of a row with a
    completion: learnt with data.train_on=all alone.
    """

    messages: tuple[dict[str, Any], ...]
    where: str
    tools: Any = None
    untrained: tuple[int, ...] = ()
    asked: int = 0

    def part(self, start: int, stop: int) -> Conversation:
        """The messages from `start` to `stop`, with their `untrained` and `asked` renumbered."""
        untrained = tuple(turn - start for turn in self.untrained if start <= turn < stop)
        asked = max(min(self.asked, stop) - start, 0)
        return replace(self, messages=self.messages[start:stop], untrained=untrained, asked=asked)

    @property
    def text(self) -> str:
        """The contents of all messages, as text for a tokenizer to learn from."""
        contents = (message.get("content") for message in self.messages)
        return "\n".join(content for content in contents if isinstance(content, str))

    @property
    def content(self) -> bytes:
        """Everything but `where` as JSON bytes, for hashing."""
        all_of_it = [self.messages, self.tools, self.untrained, self.asked]
        return json.dumps(all_of_it, ensure_ascii=False, default=str).encode()


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """tokens: uint32 [tokens]. counted: bool [tokens], true where the token is learnt."""

    tokens: np.ndarray
    counted: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


class Renders(Protocol):
    """Turns conversations into the tokens of a tokenizer: a forge.data.tokenizers.render.Render."""

    def source(self, tokenizer: Any) -> str:
        """The chat template used with a tokenizer, or with a section of a tokenizer."""
        ...

    def __call__(
        self, conversations: Sequence[Conversation], tokenizer: Any, /
    ) -> list[Rendered]: ...
