"""Caches of the tokens already read by a model: keys and values, or states, of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.model.attention_options import Span
from forge.models.documents import as_scores


class LayerCache:
    """The cache of one layer, with the first `length` tokens.

    Tensors [..., cached tokens, width], as keys and values [batch, kv_heads, tokens, head_dim].
    With a window a ring holds the last `window` tokens.

    padding: [batch], number of filler tokens before each row's text; None = none. A mixer with
    states instead of tokens has the states in `held`.
    """

    def __init__(
        self, max_len: int, span: Span | None = None, padding: Tensor | None = None
    ) -> None:
        self.max_len, self.span, self.padding = max_len, span or Span(), padding
        window = self.span.window
        self.size = min(window, max_len) if window else max_len
        self.length = 0
        self.held: tuple[Tensor, ...] = ()

    def keep(self, tokens: int, *states: Tensor) -> None:
        """Replace the states, [batch, ...], by the states after `tokens` further tokens."""
        self.length += tokens
        if self.length > self.max_len:
            raise ValueError(f"{self.length} tokens in a cache for {self.max_len}")
        self.held = states

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Add tensors of further tokens, [..., seq, width]; returns the tensors of all tokens seen
        by the further tokens, in the order of `numbers`.
        """
        seq = new[0].shape[-2]
        if self.length + seq > self.max_len:
            raise ValueError(f"{self.length + seq} tokens in a cache for {self.max_len}")
        if not self.held:
            sizes = [(*states.shape[:-2], self.size, states.shape[-1]) for states in new]
            pairs = zip(new, sizes, strict=True)
            self.held = tuple(states.new_empty(size) for states, size in pairs)
        stop = self.length + seq
        if seq == 1 or stop <= self.size:
            self._write(new, stop)
            return tuple(saved[..., : min(stop, self.size), :] for saved in self.held)
        # The ring cannot hold all keys of several queries, so old and new keys are joined first.
        slots = self.numbers(seq, new[0].device)[:-seq] % self.size
        pairs = list(zip(self.held, new, strict=True))
        seen = tuple(
            torch.cat((saved.index_select(-2, slots), states), -2) for saved, states in pairs
        )
        self._write(tuple(states[..., -self.size :, :] for states in new), stop)
        return seen

    def numbers(self, seq: int, device: torch.device) -> Tensor:
        """Numbers, from 0, of the tokens returned by the next `append` of `seq` tokens."""
        stop = self.length + seq
        if seq > 1 or stop <= self.size:
            first = max(self.length - self.size + 1, 0)
            return torch.arange(first, stop, device=device)
        slots = torch.arange(self.size, device=device)
        return self.length - (self.length - slots) % self.size

    def select(self, rows: Tensor) -> None:
        """Keep rows by their indices, [batch]; an index may occur several times."""
        self.held = tuple(states.index_select(0, rows) for states in self.held)

    def _write(self, new: tuple[Tensor, ...], stop: int) -> None:
        """Write the tokens before number `stop`, at most `size` of them."""
        seq = new[0].shape[-2]
        first = (stop - seq) % self.size
        fits = min(self.size - first, seq)
        for saved, states in zip(self.held, new, strict=True):
            saved[..., first : first + fits, :] = states[..., :fits, :]
            if fits < seq:
                saved[..., : seq - fits, :] = states[..., fits:, :]
        self.length = stop


class KVCache:
    """The LayerCache of each layer, for at most `max_len` tokens. For use without gradients.

    spans: the span of each layer. padding: as in `LayerCache`. last_embedding: [batch, 1, dim], of
    the last token, for a model that smears embeddings.
    """

    def __init__(self, max_len: int, spans: Sequence[Span], padding: Tensor | None = None) -> None:
        self.max_len, self.padding = max_len, padding
        self.layers = [LayerCache(max_len, span, padding) for span in spans]
        self.last_embedding: Tensor | None = None
        self.states: dict[str, LayerCache] = {}

    def state(self, name: str) -> LayerCache:
        """The cache of a part beside the layers, made at its first use."""
        return self.states.setdefault(name, LayerCache(self.max_len))

    @property
    def length(self) -> int:
        # A stage of a pipeline fills only those of its own layers.
        return max(layer.length for layer in self.layers)

    def select(self, rows: Tensor) -> None:
        """Keep rows by their indices, [batch]; an index may occur several times."""
        self.padding = None if self.padding is None else self.padding.index_select(0, rows)
        if self.last_embedding is not None:
            self.last_embedding = self.last_embedding.index_select(0, rows)
        for state in self.states.values():
            state.select(rows)
        for layer in self.layers:
            layer.padding = self.padding
            layer.select(rows)


def can_select(cache: Any) -> bool:
    """Whether rows of a cache can be left out and copied: of ours, and of a user's `select`."""
    parts = cache.values() if isinstance(cache, dict) else [cache]  # of a pipeline, by stage
    return all(hasattr(part, "select") for part in parts)


def select_rows(cache: Any, rows: Tensor) -> None:
    """Keep rows of a cache with `select`, or of each stage's cache."""
    for part in cache.values() if isinstance(cache, dict) else [cache]:
        part.select(rows)


def token_positions(start: int, seq: int, padding: Tensor) -> Tensor:
    """Numbers of the tokens in the text of each row, [batch, seq]; below 0 before the text."""
    return torch.arange(start, start + seq, device=padding.device) - padding[:, None]


def seen_in(cache: LayerCache, seq: int, dtype: torch.dtype) -> Tensor:
    """Mask added to the scores of the next `seq` tokens of padded rows, over the keys of the next
    `append`: [batch, 1, seq, keys].
    """
    assert cache.padding is not None
    device = cache.padding.device
    queries = torch.arange(cache.length, cache.length + seq, device=device)[:, None]
    keys = cache.numbers(seq, device)
    behind = queries - keys
    window, chunk = cache.span
    near = (behind >= 0) & (behind < window if window else behind >= 0)
    begins = cache.padding[:, None, None]
    # Padding sees padding: a softmax over no key at all would be NaN.
    seen = near & ((queries >= begins) == (keys >= begins))
    if chunk:
        seen &= (queries - begins) // chunk == (keys - begins) // chunk
    return as_scores(seen.unsqueeze(1), dtype)
