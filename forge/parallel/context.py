"""Context parallelism: each cp rank has a part of every sequence; only attention needs the others'.

all_gather (as for Llama 3, arXiv:2407.21783 section 3.3.2): a rank's queries read the gathered keys
and values of all. ulysses (arXiv:2309.14509): ranks exchange sequence parts for heads, attend over
whole sequences with some heads, and exchange back. Positions are those in the whole sequence. Where
documents share a row, every rank knows those of the whole row. FSDP sums the gradients of
parameters over cp ranks too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from forge.config.model.attention_options import Span
from forge.models.decoder import Decoder
from forge.models.documents import Packed, packed
from forge.models.positions import Positions, Sinusoids
from forge.models.rope import PositionTable, Rotation
from forge.parallel.collectives import exchange, gather
from forge.parallel.mesh import Mesh
from forge.parallel.modules import (
    Sequences,
    blocks_of,
    cut_sequences,
    layers_of,
    mix_in,
    mix_in_each,
)

if TYPE_CHECKING:
    from forge.config.root import Config


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which of `ranks` equal parts of a sequence a rank has.

    balanced: of 2 * ranks chunks rank r has chunks r and -1 - r. Late queries read more keys than
    early ones, so with contiguous parts the first rank would idle.
    """

    rank: int
    ranks: int
    balanced: bool

    @property
    def chunks(self) -> tuple[int, ...]:
        """The numbers of the chunks that this rank has, of equal ones of a sequence."""
        own = self.rank
        return (own, 2 * self.ranks - 1 - own) if self.balanced else (own,)

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """What this rank has of a tensor, along the dimension of the sequence."""
        number = len(self.chunks) * self.ranks
        assert whole.shape[dim] % number == 0, (tuple(whole.shape), dim, number)
        chunks = whole.chunk(number, dim)
        return torch.cat([chunks[own] for own in self.chunks], dim)

    def ordered(self, of_ranks: Tensor, dim: int) -> list[Tensor]:
        """of_ranks: [ranks, ...], what each rank has -> the chunks of the whole, in order."""
        first, *second = of_ranks.chunk(len(self.chunks), dim)
        return [*first.unbind(), *(chunk for late in second for chunk in reversed(late.unbind()))]


def part_of(mesh: Mesh) -> Part:
    parallel = mesh.parallel
    balanced = parallel.cp_load_balance and parallel.cp_method == "all_gather" and parallel.cp > 1
    return Part(rank=mesh.axes.get_local_rank("cp"), ranks=parallel.cp, balanced=balanced)


def own_part(tensor: Tensor, mesh: Mesh) -> Tensor:
    """[batch, seq] -> this cp rank's part, [batch, seq / cp], in the model's order."""
    return part_of(mesh).of(tensor, 1)


@runtime_checkable
class Attends(Protocol):
    """Attention of any kind, so far as cp knows it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """q: [batch, heads, seq, dim] over k: [batch, kv_heads, keys, dim] and v: [batch, kv_heads,
        keys, other dim] -> [batch, heads, seq, other dim]; the last query is of the last key's
        position. Where documents share rows, it is also given what is added to scores.
        """
        ...


def spread_context(model: Decoder, cfg: Config, mesh: Mesh) -> None:
    """Make a decoder, or a stage of one, read this rank's part of each sequence, in place.

    Raises ValueError for a block without attention.
    """
    gathered = cfg.parallel.cp_method == "all_gather"
    context = Context(
        part=part_of(mesh),
        group=mesh.axes.get_group("cp"),
        sequences=cut_sequences(model),
        whole_queries=not gathered,
    )
    attention = OverGatheredKeys if gathered else OverExchangedHeads
    seams = SEAMS | {Attends: attention}
    for block in blocks_of(model):
        if not any(isinstance(module, tuple(seams)) for module in block.modules()):
            kinds = ", ".join(type(layer).__name__ for layer in layers_of(block))
            what = f"parallel.cp={cfg.parallel.cp}: {kinds} of a block: none has"
            raise ValueError(f"{what} a method attend(q, k, v), whose keys cp could send")
    mix_in_each(model, seams, over_cp=context)
    mix_in(model, DocumentsOfPart, over_cp=context)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where the parts of sequences are. group: the ranks that have them. whole_queries: whether a
    rank attends whole sequences.
    """

    part: Part
    group: dist.ProcessGroup
    sequences: Sequences
    whole_queries: bool


class OverGatheredKeys:
    """Mixin of attention: this rank's queries over the keys and values of all ranks."""

    over_cp: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *seen: Tensor) -> Tensor:
        """seen: of this rank's queries and all keys."""
        part, attend = self.over_cp.part, super().attend  # type: ignore[misc]
        if not self.over_cp.sequences.cut:
            return attend(q, k, v, *seen)
        keys, values = self._gathered(k, v)
        heads, number = [], len(part.chunks)
        for own, chunk in enumerate(part.chunks):
            upto = [torch.cat(each[: chunk + 1], 2) for each in (keys, values)]
            rows = (each.chunk(number, 2)[own][..., : upto[0].shape[2]] for each in seen)
            heads.append(attend(q.chunk(number, 2)[own], *upto, *rows))
        return torch.cat(heads, 2)

    def _gathered(self, *tensors: Tensor) -> list[list[Tensor]]:
        """Of each tensor [batch, heads, seq / cp, dim] all chunks, in order; by one all-gather."""
        part, sizes = self.over_cp.part, [each.numel() for each in tensors]
        flat = gather(torch.cat([each.flatten() for each in tensors]), 0, self.over_cp.group)
        of_ranks = flat.unflatten(0, (part.ranks, -1)).split(sizes, 1)
        return [
            part.ordered(values.unflatten(1, each.shape), 3)
            for values, each in zip(of_ranks, tensors, strict=True)
        ]


class OverExchangedHeads:
    """Mixin of attention: some of the heads over whole sequences."""

    over_cp: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *seen: Tensor) -> Tensor:
        """seen: of whole sequences."""
        attend, group = super().attend, self.over_cp.group  # type: ignore[misc]
        if not self.over_cp.sequences.cut:
            return attend(q, k, v, *seen)
        kv = exchange(torch.cat((k, v), -1), 1, 2, group)
        k, v = kv.split((k.shape[-1], v.shape[-1]), -1)
        return exchange(attend(exchange(q, 1, 2, group), k, v, *seen), 2, 1, group)

    def sinks_here(self) -> Tensor | None:
        """Of the heads that this rank attends with."""
        sinks, part = super().sinks_here(), self.over_cp.part  # type: ignore[misc]
        if sinks is None or not self.over_cp.sequences.cut:
            return sinks
        return sinks.chunk(part.ranks)[part.rank]


class RotationOfPart:
    """Mixin of a table of positions: the rows of this rank's positions."""

    over_cp: Context

    def forward(self, start: int, seq: int) -> Rotation:
        """Of `seq` positions from `start` on, or of this rank's of a cut sequence."""
        if not self.over_cp.sequences.cut:
            return super().forward(start, seq)  # type: ignore[misc]
        part = self.over_cp.part
        whole = super().forward(start, seq * part.ranks)  # type: ignore[misc]
        return tuple(part.of(table, 0) for table in whole)


class PositionsOfPart:
    """Mixin of a table of positions that are added: the rows of this rank's positions."""

    over_cp: Context

    def forward(self, index: Tensor) -> Tensor:
        """index: [seq], counted from 0 in this rank's part of a cut sequence, or [batch, seq], in
        documents -> [..., dim].
        """
        if self.over_cp.sequences.cut and index.dim() == 1:
            part = self.over_cp.part
            index = part.of(torch.arange(len(index) * part.ranks, device=index.device), 0)
        return super().forward(index)  # type: ignore[misc]


class DocumentsOfPart:
    """Mixin of a decoder: of rows that documents share, what this rank has and sees."""

    over_cp: Context
    spans: dict[str, Span]

    def packed(self, documents: Tensor) -> Packed:
        """documents: [batch, seq], of whole rows."""
        whole = torch.arange(documents.shape[1], device=documents.device)
        own = self.over_cp.part.of(whole, 0)
        queries = whole if self.over_cp.whole_queries else own
        return packed(documents, self.spans.values(), tokens=own, queries=queries)


SEAMS: dict[type, type] = {
    PositionTable: RotationOfPart,
    Positions: PositionsOfPart,
    Sinusoids: PositionsOfPart,
}
"""Mixins by type, of what knows positions or other tokens; any class with `attend` has one."""
