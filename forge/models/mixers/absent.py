"""A branch that a block does not have."""

from __future__ import annotations

from torch import nn

from forge.config.model.decoder import Decoder as DecoderConfig


class NoBranch(nn.Module):
    """In the place of a mixer or a feed-forward layer in a block without it, which leaves out the
    branch with its norm.
    """

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
