"""Multi-token prediction, the form of DeepSeek 3 (arXiv:2412.19437, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.cache import LayerCache
from forge.models.documents import Packed, scores_or_blocks
from forge.models.mixin import mix_in
from forge.models.moe import mixtures_of
from forge.models.norm import make_norm
from forge.models.rope import Rotation


class FurtherToken(nn.Module):
    """A module that predicts one token further: norms of the embedding of the token between and of
    the hidden state before, a projection of both, and a block of the model.

    residual_dtype: of hidden states between layers; null = as the projection.
    """

    residual_dtype: torch.dtype | None = None

    def __init__(self, section: DecoderConfig, block: nn.Module) -> None:
        super().__init__()
        self.embedding_norm, self.hidden_norm = make_norm(section), make_norm(section)
        self.projection = nn.Linear(2 * section.dim, section.dim, bias=False)
        self.block = block
        self.norm = make_norm(section)

    def forward(
        self,
        embedding: Tensor,
        hidden: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Any,
    ) -> Tensor:
        """embedding, hidden: [batch, seq, dim] -> the state for the output head, of the same shape;
        the further arguments are those of a block.
        """
        both = torch.cat((self.embedding_norm(embedding), self.hidden_norm(hidden)), -1)
        x = self.projection(both)
        x = x if self.residual_dtype is None else x.to(self.residual_dtype)
        return self.norm(self.block(x, rotation, cache, *seen))


class Predicting:
    """Mixin of a decoder with modules for further tokens, in `mtp`, by their depth from 0."""

    section: DecoderConfig
    mtp: nn.ModuleDict
    embedding: nn.Embedding
    kinds: list[str]
    spans: dict[str, Any]
    packed: Callable[[Tensor], Packed]
    _rotations: Callable[[int, int, Tensor | None], dict[str, Rotation]]
    _read: Callable[..., Tensor]
    to_head: Callable[[Tensor], Tensor]

    def hidden_ahead(
        self, tokens: Tensor, *, documents: Tensor | None = None, **beside: Tensor | None
    ) -> tuple[Tensor, ...]:
        """tokens: [batch, seq] -> hidden states for the output head, [batch, seq, dim]: those of
        `hidden`, for the next token, then of each module, for a token further each time.

        A state is of use where the tokens between are of its document, and in the row. Arguments
        as in `hidden`.
        """
        x = self._read(tokens, documents=documents, **beside)
        seq, states = tokens.shape[1], [x]
        rotation, seen = self._beside(seq, documents, x.dtype)
        for depth, module in enumerate(self.mtp.values(), 1):
            between = F.pad(tokens[:, depth:], (0, min(depth, seq)))
            states.append(module(self.embedding(between), states[-1], rotation, None, *seen))
        return tuple(self.to_head(state) for state in states)

    def _beside(
        self, seq: int, documents: Tensor | None, dtype: torch.dtype
    ) -> tuple[Rotation | None, tuple[Any, ...]]:
        """The rotation and the mask of the modules, which are of a block's kind."""
        kind = self.section.repeated_kind.name
        if documents is None:
            return self._rotations(0, seq, None).get(kind), ()
        rows = self.packed(documents)
        rotation = self._rotations(0, seq, rows.positions).get(kind)
        return rotation, (scores_or_blocks(rows.seen[self.spans[kind]], dtype),)


def add_further(model: Any, make_block: Callable[[str], nn.Module]) -> None:
    """Give a decoder the modules of its section, by their depth from 0, in `mtp`, and number all of
    its mixtures of experts in their order. make_block: of a name.
    """
    depths = range(model.section.mtp_num_layers)
    made = {str(n): FurtherToken(model.section, make_block(f"mtp.{n}.block")) for n in depths}
    if made:
        mix_in(model, Predicting)
    model.mtp = nn.ModuleDict(made)
    for number, mixture in enumerate(mixtures_of(model)):
        mixture.number = number
