"""Whether sequences are cut over ranks: they are when they are read whole, and are not when text is
written token by token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from forge.parallel.mixin import mix_in


class Sequences:
    """What the modules of one model share; `cut` holds from one reading of the model to the next,
    its backward pass included.
    """

    def __init__(self) -> None:
        self.cut = True


class CutWhenWhole:
    """Mixin of a decoder: without a cache its sequences are cut, with one they are not."""

    sequences: Sequences

    def hidden(self, tokens: Tensor, *, cache: Any = None) -> Tensor:
        """As the decoder's own."""
        self.sequences.cut = cache is None
        return super().hidden(tokens, cache=cache)  # type: ignore[misc]


def cut_when_whole(model: Any) -> Sequences:
    """Make the decoder note, each time it reads, whether sequences are cut; returns where."""
    if not isinstance(model, CutWhenWhole):
        mix_in(model, CutWhenWhole)
        model.sequences = Sequences()
    return model.sequences
