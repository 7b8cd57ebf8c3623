"""Context parallelism: each cp rank has a part of every sequence; only attention needs the others'.

all_gather (as for Llama 3, arXiv:2407.21783 section 3.3.2): a rank's queries read the gathered keys
and values of all. ulysses (arXiv:2309.14509): ranks exchange sequence parts for heads, attend over
whole sequences with some heads, and exchange back. Positions are those in the whole sequence. FSDP
sums the gradients of parameters over cp ranks too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.models.attention import Attention
from forge.models.sdpa import causal_attention
from forge.parallel.collectives import exchange, gather
from forge.parallel.mesh import Mesh
from forge.parallel.modules import Sequences, cut_sequences, mix_in

if TYPE_CHECKING:
    from forge.config.root import Config
    from forge.models.decoder import Decoder
    from forge.models.rope import Rotation


@dataclass(frozen=True, kw_only=True)
class Part:
    """Which of `ranks` equal parts of a sequence a rank has.

    balanced: of 2 * ranks chunks rank r has chunks r and -1 - r. Late queries read more keys than
    early ones, so with contiguous parts the first rank would idle.
    """

    rank: int
    ranks: int
    balanced: bool

    def of(self, whole: Tensor, dim: int) -> Tensor:
        pieces = 2 * self.ranks if self.balanced else self.ranks
        assert whole.shape[dim] % pieces == 0, (tuple(whole.shape), dim, pieces)
        chunks = whole.chunk(pieces, dim)
        first, second = chunks[self.rank], chunks[-1 - self.rank]
        return torch.cat((first, second), dim) if self.balanced else first


def part_of(mesh: Mesh) -> Part:
    parallel = mesh.parallel
    balanced = parallel.cp_load_balance and parallel.cp_method == "all_gather" and parallel.cp > 1
    return Part(rank=mesh.axes.get_local_rank("cp"), ranks=parallel.cp, balanced=balanced)


def own_part(tensor: Tensor, mesh: Mesh) -> Tensor:
    """[batch, seq] -> this cp rank's part, [batch, seq / cp], in the model's order."""
    return part_of(mesh).of(tensor, 1)


def spread_context(model: Decoder, cfg: Config, mesh: Mesh) -> None:
    """Make a decoder, or a stage of one, read this rank's part of each sequence, in place."""
    sequences, part, group = cut_sequences(model), part_of(mesh), mesh.axes.get_group("cp")
    gathers = cfg.parallel.cp_method == "all_gather"
    for module in model.modules():
        if isinstance(module, Attention):
            mix_in(module, OverGatheredKeys if gathers else OverExchangedHeads)
            module.part, module.group = part, group  # type: ignore[assignment]
    for module, mixin in ((model.rotary, RotationOfPart), (model.positions, PositionsOfPart)):
        if module is not None:
            mix_in(module, mixin)
            module.part, module.sequences = part, sequences  # type: ignore[assignment]


class OverGatheredKeys(nn.Module):
    """Mixin of attention: this rank's queries over the keys and values of all ranks."""

    part: Part
    group: dist.ProcessGroup
    backend: str

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [batch, heads, seq / cp, head_dim]; k, v: the same of kv_heads -> as q."""
        of_ranks = gather(torch.stack((k, v)), 0, self.group).unflatten(0, (self.part.ranks, 2))
        if not self.part.balanced:
            return self._attend(q, of_ranks.permute(1, 2, 3, 0, 4, 5), self.part.rank + 1)
        # The early chunks are in the order of the ranks, the late ones in the reverse.
        early, late = of_ranks.unflatten(4, (2, -1)).permute(1, 2, 3, 4, 0, 5, 6).unbind(3)
        chunks = torch.cat((early, late.flip(3)), 3)
        first, second = q.chunk(2, 2)
        early_heads = self._attend(first, chunks, self.part.rank + 1)
        late_heads = self._attend(second, chunks, 2 * self.part.ranks - self.part.rank)
        return torch.cat((early_heads, late_heads), 2)

    def _attend(self, q: Tensor, chunks: Tensor, end: int) -> Tensor:
        """Queries of chunk end - 1 over chunks: [2, batch, kv_heads, chunk, seq, head_dim]."""
        k, v = chunks[:, :, :, :end].flatten(3, 4).unbind(0)
        return causal_attention(q, k, v, self.backend)


class OverExchangedHeads(nn.Module):
    """Mixin of attention: some of the heads over whole sequences."""

    part: Part
    group: dist.ProcessGroup

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As over gathered keys."""
        q = exchange(q, 1, 2, self.group)
        k, v = exchange(torch.stack((k, v)), 2, 3, self.group).unbind(0)
        return exchange(super().attend(q, k, v), 2, 1, self.group)  # type: ignore[misc]


class RotationOfPart(nn.Module):
    """Mixin of the rotary table: the rows of this rank's positions."""

    part: Part
    sequences: Sequences

    def forward(self, start: int, seq: int) -> Rotation:
        """Of `seq` positions from `start` on, or of this rank's of a cut sequence."""
        if not self.sequences.cut:
            return super().forward(start, seq)
        cos, sin = super().forward(start, seq * self.part.ranks)
        return self.part.of(cos, 0), self.part.of(sin, 0)


class PositionsOfPart(nn.Module):
    """Mixin of the table of learned positions: the rows of this rank's positions."""

    part: Part
    sequences: Sequences

    def forward(self, index: Tensor) -> Tensor:
        """index: [seq], counted from 0 in this rank's part of a cut sequence -> [seq, dim]."""
        if self.sequences.cut:
            index = self.part.of(torch.arange(len(index) * self.part.ranks, device=index.device), 0)
        return super().forward(index)
