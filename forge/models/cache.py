"""The keys and values of the tokens a model has already read."""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """Keys and values of one layer, [batch, kv_heads, max_len, head_dim], filled up to `length`."""

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values [batch, kv_heads, seq, head_dim]; returns all so far."""
        if self._keys is None or self._values is None:
            batch, heads, _, head_dim = keys.shape
            self._keys = keys.new_empty(batch, heads, self.max_len, head_dim)
            self._values = values.new_empty(batch, heads, self.max_len, head_dim)
        end = self.length + keys.shape[2]
        if end > self.max_len:
            raise ValueError(f"{end} tokens in a cache for {self.max_len}")
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


class KVCache:
    """One LayerCache a layer, for at most `max_len` tokens. For use without gradients."""

    def __init__(self, n_layers: int, max_len: int) -> None:
        self.max_len = max_len
        self.layers = [LayerCache(max_len) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        # A stage of a pipeline fills only those of its own layers.
        return max(layer.length for layer in self.layers)
