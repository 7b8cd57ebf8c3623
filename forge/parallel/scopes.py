"""Counts of a mixture of experts over several ranks: of cut sequences and micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.models.moe import MoE
from forge.parallel.collectives import gather, sum_over
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in_each
from forge.parallel.sequences.part import Part, part_of


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The layout of a micro-batch's tokens over ranks.

    part: this rank's part of each sequence. sequences: the ranks with the other parts. batch: all
    dp * cp * ep ranks with tokens of the micro-batch; this rank is dp_rank, part.rank, ep_rank.
    """

    part: Part
    sequences: dist.ProcessGroup
    batch: dist.ProcessGroup
    dp: int
    ep: int
    dp_rank: int
    ep_rank: int

    @property
    def pieces(self) -> int:
        """Runs of a sequence's tokens on this rank."""
        return 2 if self.part.balanced else 1


def spread_scopes(model: nn.Module, mesh: Mesh) -> None:
    """Make the mixtures of a model or a stage count over all ranks that share a scope, in place."""
    parallel, rank = mesh.parallel, mesh.axes.get_local_rank
    spread = Spread(
        part=part_of(mesh),
        sequences=mesh.axes.get_group("cp"),
        batch=mesh.stage_group,
        dp=parallel.dp_replicate * parallel.dp_shard,
        ep=parallel.ep,
        dp_rank=rank("dp_replicate") * parallel.dp_shard + rank("dp_shard"),
        ep_rank=rank("ep"),
    )
    mix_in_each(model, {MoE: SpreadScopes}, spread=spread)


class SpreadScopes:
    """Mixin of a mixture of experts with scopes over several ranks."""

    spread: Spread
    training: bool

    @property
    def pieces(self) -> int:
        return self.spread.pieces if self.training else 1

    @property
    def in_order(self) -> bool:
        """False where sequences are cut: the next sequence begins before this sequence ends."""
        return super().in_order and self.spread.part.ranks == 1  # type: ignore[misc]

    def scope_counts(self, counts: Tensor, *, per_sequence: bool) -> Tensor:
        if not per_sequence:
            return sum_over(counts.sum(0, keepdim=True), self.spread.batch).expand_as(counts)
        if self.spread.part.ranks == 1:
            return counts
        sequences = counts.unflatten(0, (-1, self.spread.pieces)).sum(1)
        return sum_over(sequences, self.spread.sequences).repeat_interleave(self.spread.pieces, 0)

    def earlier_counts(self, counts: Tensor, *, per_sequence: bool) -> Tensor:
        spread, part = self.spread, self.spread.part
        dp, ep = (1, 1) if per_sequence else (spread.dp, spread.ep)
        everywhere = gather(counts, 0, spread.sequences if per_sequence else spread.batch)
        of_ranks = everywhere.unflatten(0, (dp, part.ranks, ep, -1, spread.pieces))
        # Ranks are not in the order of tokens where parts are balanced: put chunks in order first.
        # [dp, ep, sequence, chunk of the sequence, expert]
        ordered = torch.cat(part.ordered(of_ranks.movedim(1, 0), 4), 3)
        until = (
            ordered.cumsum(3) if per_sequence else ordered.flatten(0, 3).cumsum(0).view_as(ordered)
        )
        # Less the own counts: an exclusive sum, of the tokens before each piece.
        own_index = (0, 0) if per_sequence else (spread.dp_rank, spread.ep_rank)
        return part.of((until - ordered)[own_index], 1).flatten(0, 1)

    def parts_of_scope(self, scopes: int, *, per_sequence: bool) -> int:
        if per_sequence:
            return self.spread.part.ranks * self.spread.pieces
        return scopes * self.spread.dp * self.spread.part.ranks * self.spread.ep
