"""Answers that are JSON of a schema, by llguidance (github.com/guidance-ai/llguidance)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forge.data.tokenizers.tokenizer import Tokenizer

MISSING = "response_format needs llguidance: pip install 'forge-lm[serve]'"


class JSONGuide:
    """The tokens that an answer may continue with, so that it is JSON of a schema in the end."""

    def __init__(self, matcher: Any, n_ids: int) -> None:
        self.matcher, self.n_ids = matcher, n_ids

    def allowed(self) -> Tensor:
        """Whether each token may be next, [n_ids]."""
        mask = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(mask, bitorder="little")[: self.n_ids]).bool()

    def take(self, token: int) -> None:
        self.matcher.consume_token(token)

    @property
    def done(self) -> bool:
        """Whether the answer is complete: nothing may follow."""
        return self.matcher.is_stopped()

    @property
    def fault(self) -> str:
        """Why the answer cannot continue, as where a schema asks for too much; empty if it can."""
        return self.matcher.get_error()[:300] if self.matcher.is_error() else ""


class JSONGuides:
    """Makes guides for a tokenizer. ends: ids that end an answer."""

    def __init__(self, tokenizer: Tokenizer, ends: Iterable[int]) -> None:
        self.tokenizer, self.ends = tokenizer, sorted(ends)

    @cached_property
    def _vocabulary(self) -> Any:
        from llguidance import LLTokenizer

        description = self.tokenizer.to_json()
        return LLTokenizer(description, n_vocab=self.tokenizer.vocab_size, eos_token=self.ends)

    def maker(self, schema: Mapping[str, Any]) -> Callable[[], JSONGuide]:
        """A function that makes a guide for each answer, without blanks outside of texts. Raises
        ValueError for a schema that cannot be followed, and without llguidance.
        """
        try:
            from llguidance import LLMatcher
        except ImportError:
            raise ValueError(MISSING) from None
        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": False}
        )
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"the schema cannot be followed: {matcher.get_error()[:300]}")
        return lambda: JSONGuide(matcher.deep_copy(), self.tokenizer.vocab_size)
