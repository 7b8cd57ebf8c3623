"""What layers keep of the tokens that a model has already read, such as keys and values."""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """What one layer keeps of each token, filled up to `length`.

    Tensors [..., max_len, width], as keys and values [batch, kv_heads, max_len, head_dim].
    """

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.length = 0
        self.held: tuple[Tensor, ...] = ()

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Add what is kept of further tokens, [..., seq, width]; returns all so far."""
        if not self.held:
            sizes = [(*each.shape[:-2], self.max_len, each.shape[-1]) for each in new]
            pairs = zip(new, sizes, strict=True)
            self.held = tuple(each.new_empty(size) for each, size in pairs)
        start, self.length = self.length, self.length + new[0].shape[-2]
        if self.length > self.max_len:
            raise ValueError(f"{self.length} tokens in a cache for {self.max_len}")
        for kept, each in zip(self.held, new, strict=True):
            kept[..., start : self.length, :] = each
        return tuple(kept[..., : self.length, :] for kept in self.held)


class KVCache:
    """One LayerCache a layer, for at most `max_len` tokens. For use without gradients."""

    def __init__(self, n_layers: int, max_len: int) -> None:
        self.max_len = max_len
        self.layers = [LayerCache(max_len) for _ in range(n_layers)]

    @property
    def length(self) -> int:
        # A stage of a pipeline fills only those of its own layers.
        return max(layer.length for layer in self.layers)
