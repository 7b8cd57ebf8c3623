"""What layers keep of the tokens that a model has already read, such as keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.model.attention_options import Span
from forge.models.documents import as_scores


class LayerCache:
    """What one layer keeps of each token that it has read, `length` so far.

    Tensors [..., kept tokens, width], as keys and values [batch, kv_heads, tokens, head_dim]. With
    a window the last `window` tokens are kept, in a ring.

    padding: [batch], the tokens before each row's text, which are nobody's; None = none. A mixer
    that keeps states instead has them in `held`.
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
        """Have states after so many further tokens, [batch, ...], in the place of those before."""
        self.length += tokens
        if self.length > self.max_len:
            raise ValueError(f"{self.length} tokens in a cache for {self.max_len}")
        self.held = states

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Add what is kept of further tokens, [..., seq, width]; returns that of all tokens that
        these see, in the order of `numbers`.
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
        slots = self.numbers(seq, new[0].device)[:-seq] % self.size
        pairs = list(zip(self.held, new, strict=True))
        seen = tuple(
            torch.cat((saved.index_select(-2, slots), states), -2) for saved, states in pairs
        )
        self._write(tuple(states[..., -self.size :, :] for states in new), stop)
        return seen

    def numbers(self, seq: int, device: torch.device) -> Tensor:
        """Of the tokens that the next `append` of so many will return, counted from 0."""
        stop = self.length + seq
        if seq > 1 or stop <= self.size:
            first = max(self.length - self.size + 1, 0)
            return torch.arange(first, stop, device=device)
        slots = torch.arange(self.size, device=device)
        return self.length - (self.length - slots) % self.size

    def select(self, rows: Tensor) -> None:
        """Have these rows, [batch], by their places; one may be there several times."""
        self.held = tuple(states.index_select(0, rows) for states in self.held)

    def _write(self, new: tuple[Tensor, ...], stop: int) -> None:
        """The tokens before number `stop`, at most as many as there is room for."""
        seq = new[0].shape[-2]
        first = (stop - seq) % self.size
        fits = min(self.size - first, seq)
        for saved, states in zip(self.held, new, strict=True):
            saved[..., first : first + fits, :] = states[..., :fits, :]
            if fits < seq:
                saved[..., : seq - fits, :] = states[..., fits:, :]
        self.length = stop


class KVCache:
    """One LayerCache a layer, for at most `max_len` tokens. For use without gradients.

    spans: of each layer. padding: as of `LayerCache`.
    """

    def __init__(self, max_len: int, spans: Sequence[Span], padding: Tensor | None = None) -> None:
        self.max_len, self.padding = max_len, padding
        self.layers = [LayerCache(max_len, span, padding) for span in spans]

    @property
    def length(self) -> int:
        # A stage of a pipeline fills only those of its own layers.
        return max(layer.length for layer in self.layers)

    def select(self, rows: Tensor) -> None:
        """Have these rows, [batch], by their places; one may be there several times."""
        self.padding = None if self.padding is None else self.padding.index_select(0, rows)
        for layer in self.layers:
            layer.padding = self.padding
            layer.select(rows)


def can_select(cache: Any) -> bool:
    """Whether rows of it can be left out and copied: of ours, and of a user's with `select`."""
    parts = cache.values() if isinstance(cache, dict) else [cache]  # of a pipeline, by stage
    return all(hasattr(part, "select") for part in parts)


def select(cache: Any, rows: Tensor) -> None:
    """Have these rows of a cache that can do so, or of each stage's."""
    for part in cache.values() if isinstance(cache, dict) else [cache]:
        part.select(rows)


def numbered(start: int, seq: int, padding: Tensor) -> Tensor:
    """The numbers of tokens in the text of their rows, [batch, seq]; below 0 before it."""
    return torch.arange(start, start + seq, device=padding.device) - padding[:, None]


def seen_in(cache: LayerCache, seq: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of the next `seq` tokens of padded rows, over the keys that
    `append` will return: [batch, 1, seq, keys]. Padding sees padding, so that it stays finite.
    """
    assert cache.padding is not None
    device = cache.padding.device
    queries = torch.arange(cache.length, cache.length + seq, device=device)[:, None]
    keys = cache.numbers(seq, device)
    behind = queries - keys
    window, chunk = cache.span
    near = (behind >= 0) & (behind < window if window else behind >= 0)
    begins = cache.padding[:, None, None]
    seen = near & ((queries >= begins) == (keys >= begins))
    if chunk:
        seen &= (queries - begins) // chunk == (keys - begins) // chunk
    return as_scores(seen.unsqueeze(1), dtype)
