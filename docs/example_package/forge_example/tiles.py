"""Feed-forward layers in tiles of a sequence, each computed again in backward, so that no more than
one tile's activations are held at a time (ALST, arXiv:2506.13996, section 3.2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forge.api import Config, FeedForward, Mesh, Technique, mix_in_each


class Tiles(Technique):
    def __init__(self, number: int = 4) -> None:
        self.number = number

    def __call__(self, model: nn.Module, config: Config, mesh: Mesh | None) -> None:
        mix_in_each(model, {FeedForward: InTiles}, number=self.number)


class InTiles:
    """Mixin of a feed-forward layer."""

    number: int

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        layer = super().forward  # type: ignore[misc]
        tiles = (checkpoint(layer, tile, use_reentrant=False) for tile in x.chunk(self.number, 1))
        return torch.cat(list(tiles), 1)
