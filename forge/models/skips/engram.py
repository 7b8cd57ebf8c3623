"""Engram (arXiv:2601.07372): tables of n-grams of tokens, looked up by hashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.cache import LayerCache
from forge.models.mixers.causal_conv import causal_conv, wide

BITS = 31  # of a product of a token id and a multiplier
STREAMS_APART = 10007  # between the seeds of two layers
LEAST = 1e-6  # of a product under the root


class Engram(nn.Module):
    """Adds to each stream of hidden states a gate times a value of the token's n-grams, and a
    convolution of these over earlier tokens.

    The n-grams of a token end with it. Tokens before the beginning of a document count as an id
    of their own, after those of the vocabulary.
    """

    multipliers: Tensor
    rows: Tensor
    offsets: Tensor

    def __init__(self, section: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.section, self.layer = section, layer
        self.longest, self.streams = section.engram_max_ngram_size, section.mhc_expansion_rate
        self.number = sum(section.engram_rows(layer))
        width, channels = section.engram_width, self.streams * section.dim
        self.table = nn.Parameter(torch.zeros(self.number, section.engram_head_dim))
        self.conv = nn.Parameter(torch.zeros(channels, section.engram_kernel_size))
        self.key, self.value = nn.Linear(width, channels), nn.Linear(width, section.dim)
        names = ("key_norm", "query_norm", "conv_norm")
        self.key_norm, self.query_norm, self.conv_norm = (
            nn.Parameter(torch.ones(channels)) for _ in names
        )
        for name in ("multipliers", "rows", "offsets"):
            self.register_buffer(name, None, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Make the numbers of the hashes, which depend on the options alone."""
        section, device = self.section, self.table.device
        values = multipliers(section.vocab_size, self.longest, self.layer, section.engram_seed)
        self.multipliers = torch.tensor(values, device=device)
        rows = torch.tensor(section.engram_rows(self.layer), device=device)
        self.rows = rows.view(self.longest - 1, -1)
        self.offsets = (rows.cumsum(0) - rows).view_as(self.rows)

    def forward(
        self, x: Tensor, tokens: Tensor, places: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        """x: [batch, seq, streams * dim] -> the same shape. tokens: [batch, seq]. places: positions
        of the tokens in their documents, [batch, seq]. The cache has the last tokens, and the last
        inputs of the convolution.
        """
        earlier, tail = cache.held if cache is not None and cache.held else (None, None)
        ids, last = self.ids(tokens, places, earlier)
        looked_up = F.embedding(ids, self.table).flatten(-2)
        looked_up = looked_up.to(self.key.weight.dtype)
        key, value = (wide(layer(looked_up)) for layer in (self.key, self.value))
        streams = self._streams(wide(x))
        product = self._normed(self._streams(key), self.key_norm)
        product = product * self._normed(streams, self.query_norm)
        score = product.sum(-1, keepdim=True) / self.section.dim**0.5
        gate = (score.sign() * score.abs().clamp(min=LEAST).sqrt()).sigmoid()
        added = gate * value.unsqueeze(-2)
        read = self._normed(added, self.conv_norm).flatten(-2)
        mixed, tail = causal_conv(read, self.conv, tail, places, apart=self.longest)
        if cache is not None:
            cache.keep(tokens.shape[1], last, tail)
        return (wide(x) + added.flatten(-2) + F.silu(mixed)).to(x.dtype)

    def ids(self, tokens: Tensor, places: Tensor, earlier: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows of the table for each token, [batch, seq, orders * heads], and the last
        tokens, for those that follow. earlier: [batch, longest - 1], tokens before.
        """
        back, none = self.longest - 1, self.section.vocab_size
        if earlier is None:
            earlier = tokens.new_full((len(tokens), back), none)
        known = torch.cat((earlier, tokens), 1)
        mixed, ids = tokens * self.multipliers[0], []
        for behind in range(1, self.longest):
            before = known[:, back - behind : known.shape[1] - behind]
            before = before.where(places >= behind, none)
            mixed = mixed ^ (before * self.multipliers[behind])
            ids.append(mixed.unsqueeze(-1) % self.rows[behind - 1] + self.offsets[behind - 1])
        return torch.cat(ids, -1), known[:, known.shape[1] - back :]

    def _streams(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.streams, -1))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: [batch, seq, streams, dim]; each stream has its part of the weight."""
        weight = weight.to(x.dtype) + float(self.section.norm_unit_offset)
        eps = self.section.norm_eps or torch.finfo(x.dtype).eps
        return F.rms_norm(x, x.shape[-1:], None, eps) * self._streams(weight)


def multipliers(vocab: int, longest: int, layer: int, seed: int) -> list[int]:
    """Odd factors of the tokens of an n-gram, the last token's first; products with ids up to
    `vocab` have at most `BITS` bits.
    """
    generator = np.random.Generator(np.random.PCG64(seed + STREAMS_APART * layer))
    bound = max(1, (2**BITS - 1) // (vocab + 1) // 2)
    return [2 * int(number) + 1 for number in generator.integers(0, bound, size=longest)]


def memories(section: DecoderConfig) -> nn.ModuleDict:
    """The memories of a model, by the number of the layer that follows."""
    layers = sorted(section.engram_layers)
    return nn.ModuleDict({str(layer): Engram(section, layer) for layer in layers})


def remembered(
    model: Any, x: Tensor, layer: str, tokens: Tensor, at: tuple[int, Tensor | None], cache: Any
) -> Tensor:
    """Add the memory of a layer. at: position of the first token; of all tokens,
    where they do not follow it.
    """
    start, places = at
    if places is None:
        places = start + torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    state = None if cache is None else cache.state(f"engrams.{layer}")
    return model.engrams[layer](x, tokens, places, state)
