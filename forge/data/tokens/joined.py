"""Consecutive token stores as one, for the validation split of a mixture."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from forge.data.tokens.store import TokenStore


class Joined(TokenStore):
    """Stores of one tokenizer as one. Stores without marks count all tokens."""

    def __init__(self, stores: Sequence[TokenStore]) -> None:
        self.stores = tuple(stores)
        self._starts = [0, *accumulate(map(len, self.stores))]
        if any(store.counted is not None for store in self.stores):
            self.counted = Joined([store.counted or Ones(len(store)) for store in self.stores])
        if len(kinds := {store.together for store in self.stores}) == 1:
            (self.together,) = kinds

    @property
    def offsets(self) -> np.ndarray:
        pairs = zip(self.stores, self._starts, strict=False)
        return np.concatenate([[0], *(store.offsets[1:] + start for store, start in pairs)])

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(
            "".join(store.fingerprint for store in self.stores).encode()
        ).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= len(self), (start, stop, len(self))
        parts, number = [], bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[number], min(stop, self._starts[number + 1])
            parts.append(self.stores[number].read(start - first, end - first))
            start, number = end, number + 1
        return np.concatenate(parts)


class Ones(TokenStore):
    """Marks of a store without any: every token counts as a target."""

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens

    def __len__(self) -> int:
        return self.n_tokens

    @property
    def fingerprint(self) -> str:
        return f"{self.n_tokens} ones"

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.ones(stop - start, dtype=np.uint8)
