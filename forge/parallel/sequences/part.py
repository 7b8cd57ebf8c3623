"""The part of each sequence that a rank of context parallelism has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from forge.objectives.whole_rows import WholeRows
from forge.parallel.collectives import largest_of_ranks, sum_both
from forge.parallel.mesh import Mesh
from forge.parallel.modules import Sequences


@dataclass(frozen=True, kw_only=True)
class Part:
    """This rank's part of each sequence, among `ranks` equal parts.

    balanced: of 2 * ranks chunks rank r has chunks r and -1 - r. Late queries read more keys than
    early queries: with contiguous parts the first rank would idle.
    """

    rank: int
    ranks: int
    balanced: bool

    @property
    def chunks(self) -> tuple[int, ...]:
        """The numbers of this rank's chunks, among the equal chunks of a sequence."""
        rank = self.rank
        return (rank, 2 * self.ranks - 1 - rank) if self.balanced else (rank,)

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor, along the dimension of the sequence."""
        number = len(self.chunks) * self.ranks
        assert whole.shape[dim] % number == 0, (tuple(whole.shape), dim, number)
        chunks = whole.chunk(number, dim)
        return torch.cat([chunks[index] for index in self.chunks], dim)

    def ordered(self, of_ranks: Tensor, dim: int) -> list[Tensor]:
        """of_ranks: [ranks, ...], parts of all ranks -> all chunks of the tensor, in order."""
        # Second chunks run backward over the ranks: rank r has chunk -1 - r.
        first, *second = of_ranks.chunk(len(self.chunks), dim)
        return [*first.unbind(), *(chunk for late in second for chunk in reversed(late.unbind()))]


def part_of(mesh: Mesh) -> Part:
    parallel = mesh.parallel
    balanced = parallel.runs_of_sequence == 2
    return Part(rank=mesh.axes.get_local_rank("cp"), ranks=parallel.cp, balanced=balanced)


def own_part(tensor: Tensor, mesh: Mesh) -> Tensor:
    """[batch, seq] -> this cp rank's part, [batch, seq / cp], in the model's order."""
    return part_of(mesh).of(tensor, 1)


@dataclass(frozen=True, kw_only=True)
class Context:
    """The layout of sequence parts over ranks.

    group: the ranks with the parts. whole_queries: whether a rank attends whole sequences.
    """

    part: Part
    group: dist.ProcessGroup
    sequences: Sequences
    whole_queries: bool


class PartsOfRows(WholeRows):
    """Sums over the tokens of rows of which each rank of a context has a part."""

    def __init__(self, context: Context) -> None:
        self.context, self.share = context, 1.0 / context.part.ranks

    def total(self, values: Tensor) -> Tensor:
        return sum_both(values, self.context.group)

    def has_last(self, is_target: Tensor, last: Tensor) -> Tensor:
        part = self.context.part
        whole = torch.arange(is_target.shape[1] * part.ranks, device=last.device)
        place = part.of(whole, 0)[last].where(is_target.any(1), -1)
        return place == largest_of_ranks(place, self.context.group)
