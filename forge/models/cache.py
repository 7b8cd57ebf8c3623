"""The keys and values of the tokens a model has already read."""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """Keys and values of one layer, [batch, kv_heads, max_len, head_dim], filled up to `length`."""

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.length = 0
        self._held: tuple[Tensor, Tensor] | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [batch, kv_heads, seq, head_dim]; returns all so far."""
        if self._held is None:
            batch, heads, _, head_dim = keys.shape
            size = (batch, heads, self.max_len, head_dim)
            self._held = keys.new_empty(size), values.new_empty(size)
        start, self.length = self.length, self.length + keys.shape[2]
        if self.length > self.max_len:
            raise ValueError(f"{self.length} tokens in a cache for {self.max_len}")
        for held, new in zip(self._held, (keys, values), strict=True):
            held[:, :, start : self.length] = new
        held_keys, held_values = self._held
        return held_keys[:, :, : self.length], held_values[:, :, : self.length]


class KVCache:
    """One LayerCache a layer, for at most `max_len` tokens. For use without gradients."""

    def __init__(self, n_layers: int, max_len: int) -> None:
        self.max_len = max_len
        self.layers = [LayerCache(max_len) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        # A stage of a pipeline fills only those of its own layers.
        return max(layer.length for layer in self.layers)
