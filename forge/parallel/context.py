"""Context parallelism: each cp rank has a part of every sequence; mixers alone need other parts.

all_gather (as for Llama 3, arXiv:2407.21783 section 3.3.2): a rank's queries read the gathered keys
and values of all. ulysses (arXiv:2309.14509): ranks exchange sequence parts for heads, attend over
whole sequences with some heads, and exchange back. ring: see
`forge.parallel.sequences.ring`. Recurrent mixers pass their states on, see
`forge.parallel.sequences.states`. Positions count in the whole sequence. Where
documents share a row, every rank knows all documents of the row. FSDP sums the gradients of
parameters over cp ranks too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from forge.config.model.attention_options import Span
from forge.models.attention import Attention
from forge.models.decoder import Decoder
from forge.models.documents import Packed, branches_and_masks, positions_and_masks
from forge.models.mla import MLA
from forge.models.positions import Positions, Sinusoids
from forge.models.rope import PositionTable, Rotation
from forge.models.skips.smear import Smear
from forge.parallel.collectives import exchange, gather
from forge.parallel.mesh import Mesh
from forge.parallel.modules import (
    blocks_of,
    cut_sequences,
    layers_of,
    mix_in,
    mix_in_each,
)
from forge.parallel.sequences.part import Context, PartsOfRows, part_of
from forge.parallel.sequences.ring import RingAttention
from forge.parallel.sequences.states import RECURRENT

if TYPE_CHECKING:
    from forge.config.root import Config


@runtime_checkable
class Attends(Protocol):
    """Attention of any kind, as far as cp needs."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """q: [batch, heads, seq, dim] over k: [batch, kv_heads, keys, dim] and v: [batch, kv_heads,
        keys, other dim] -> [batch, heads, seq, other dim]; the last query has the last key's
        position. Where documents share rows, a mask added to the scores follows.
        """
        ...


def spread_context(model: Decoder, cfg: Config, mesh: Mesh) -> None:
    """Make a decoder or a stage read this rank's part of each sequence, in place.

    Raises ValueError for a block without attention.
    """
    method = cfg.parallel.cp_method
    context = Context(
        part=part_of(mesh),
        group=mesh.axes.get_group("cp"),
        sequences=cut_sequences(model),
        whole_queries=method == "ulysses",
    )
    seams = SEAMS | ATTENTION[method]
    for block in blocks_of(model):
        mixes = getattr(block, "attention", block) is not None
        if mixes and not any(isinstance(module, tuple(seams)) for module in block.modules()):
            kinds = ", ".join(type(layer).__name__ for layer in layers_of(block))
            message = f"parallel.cp={cfg.parallel.cp}: {kinds} of a block: none has"
            raise ValueError(f"{message} a method attend(q, k, v), whose keys cp could send")
    mix_in_each(model, seams, over_cp=context)
    mix_in(model, DocumentsOfPart, over_cp=context, rows=PartsOfRows(context))


class OverGatheredKeys:
    """Mixin of attention: this rank's queries over the keys and values of all ranks."""

    over_cp: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *seen: Tensor) -> Tensor:
        """seen: masks added to scores, for this rank's queries and all keys."""
        part, attend = self.over_cp.part, super().attend  # type: ignore[misc]
        if not self.over_cp.sequences.cut:
            return attend(q, k, v, *seen)
        # A chunk of queries reads keys up to the chunk's end: the last query is at the last key.
        keys, values = self._gathered(k, v)
        heads, number = [], len(part.chunks)
        for piece, chunk in enumerate(part.chunks):
            upto = [torch.cat(tensor[: chunk + 1], 2) for tensor in (keys, values)]
            rows = (tensor.chunk(number, 2)[piece][..., : upto[0].shape[2]] for tensor in seen)
            heads.append(attend(q.chunk(number, 2)[piece], *upto, *rows))
        return torch.cat(heads, 2)

    def _gathered(self, *tensors: Tensor) -> list[list[Tensor]]:
        """All chunks, in order, of each tensor [batch, heads, seq / cp, dim]; by one all-gather."""
        part, sizes = self.over_cp.part, [tensor.numel() for tensor in tensors]
        # Flat tensors of different shapes share a collective.
        flat = gather(torch.cat([tensor.flatten() for tensor in tensors]), 0, self.over_cp.group)
        of_ranks = flat.unflatten(0, (part.ranks, -1)).split(sizes, 1)
        return [
            part.ordered(values.unflatten(1, tensor.shape), 3)
            for values, tensor in zip(of_ranks, tensors, strict=True)
        ]


class OverExchangedHeads:
    """Mixin of attention: some of the heads over whole sequences."""

    over_cp: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *seen: Tensor) -> Tensor:
        """seen: masks added to scores, for whole sequences."""
        attend, group = super().attend, self.over_cp.group  # type: ignore[misc]
        if not self.over_cp.sequences.cut:
            return attend(q, k, v, *seen)
        # One all-to-all for keys and values together.
        kv = exchange(torch.cat((k, v), -1), 1, 2, group)
        k, v = kv.split((k.shape[-1], v.shape[-1]), -1)
        # Heads go out and sequence parts come in; after attention the reverse.
        return exchange(attend(exchange(q, 1, 2, group), k, v, *seen), 2, 1, group)

    def sinks_here(self) -> Tensor | None:
        """The sinks of this rank's heads."""
        sinks, part = super().sinks_here(), self.over_cp.part  # type: ignore[misc]
        if sinks is None or not self.over_cp.sequences.cut:
            return sinks
        return sinks.chunk(part.ranks)[part.rank]


class RotationOfPart:
    """Mixin of a table of positions: the rows of this rank's positions."""

    over_cp: Context

    def forward(self, start: int, seq: int) -> Rotation:
        """Tables of `seq` positions from `start` on; of this rank's positions in a cut sequence."""
        if not self.over_cp.sequences.cut:
            return super().forward(start, seq)  # type: ignore[misc]
        part = self.over_cp.part
        tables = super().forward(start, seq * part.ranks)  # type: ignore[misc]
        return tuple(part.of(table, 0) for table in tables)


class PositionsOfPart:
    """Mixin of a table of added positions: the rows of this rank's positions."""

    over_cp: Context

    def forward(self, index: Tensor) -> Tensor:
        """index: [seq], counted from 0 in this rank's part of a cut sequence, or [batch, seq], in
        documents -> [..., dim].
        """
        # Positions in documents, [batch, seq], come for this rank's tokens already.
        if self.over_cp.sequences.cut and index.dim() == 1:
            part = self.over_cp.part
            index = part.of(torch.arange(len(index) * part.ranks, device=index.device), 0)
        return super().forward(index)  # type: ignore[misc]


class SmearOfPart:
    """Mixin of a smear: another rank has the last token of the chunk before."""

    over_cp: Context

    def shifted(self, x: Tensor, last: Tensor | None) -> Tensor:
        part, shifted = self.over_cp.part, super().shifted  # type: ignore[misc]
        if not self.over_cp.sequences.cut:
            return shifted(x, last)
        chunks = x.chunk(len(part.chunks), 1)
        ends = torch.cat([chunk[:, -1:] for chunk in chunks], 1)
        of_all = part.ordered(gather(ends.unsqueeze(0), 0, self.over_cp.group), 2)
        # No token is before the first chunk. Zeros made of a gathered tensor: every rank takes part
        # in the collective of backward.
        everywhere = torch.ones((), dtype=torch.bool, device=x.device)
        zeros = of_all[0].masked_fill(everywhere, 0.0)
        before = [of_all[number - 1] if number else zeros for number in part.chunks]
        return torch.cat([shifted(*pair) for pair in zip(chunks, before, strict=True)], 1)


class DocumentsOfPart:
    """Mixin of a decoder: for rows shared by documents, this rank's tokens and visible keys."""

    over_cp: Context
    rows: PartsOfRows
    spans: dict[str, Span]

    def packed(self, documents: Tensor) -> Packed:
        """documents: [batch, seq], of whole rows."""
        return positions_and_masks(documents, self.spans.values(), **self._here(documents))

    def branched(self, branches: Tensor) -> Packed:
        """branches: [batch, seq], of whole rows."""
        return branches_and_masks(branches, self.spans.values(), **self._here(branches))

    def _here(self, rows: Tensor) -> dict[str, Tensor]:
        """Indices of this rank's tokens, and of the tokens that attend on this rank."""
        all_tokens = torch.arange(rows.shape[1], device=rows.device)
        tokens = self.over_cp.part.of(all_tokens, 0)
        return {"tokens": tokens, "queries": all_tokens if self.over_cp.whole_queries else tokens}


SEAMS: dict[type, type] = {
    PositionTable: RotationOfPart,
    Positions: PositionsOfPart,
    Sinusoids: PositionsOfPart,
    Smear: SmearOfPart,
    **RECURRENT,
}
"""Mixins by type of modules with positions or other tokens."""
ATTENTION: dict[str, dict[type, type]] = {
    "all_gather": {Attends: OverGatheredKeys},
    "ulysses": {Attends: OverExchangedHeads},
    "ring": {Attention: RingAttention, MLA: RingAttention},
}
"""Mixins of attention by parallel.cp_method; but for a ring any class with `attend` has one."""
