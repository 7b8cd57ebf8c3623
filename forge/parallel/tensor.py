"""Tensor parallelism (arXiv:1909.08053): ranks share heads, feed-forward width and vocabulary.

The table of tensors names the cut dimension of a parameter. Parameters are DTensors, and layers run
their own forward on local parts; outputs of layers are summed over ranks. With sequence
parallel (arXiv:2205.05198) hidden states between layers are cut along the sequence: a layer begins
with an all-gather and ends with a reduce-scatter instead of an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from forge.config.adapters.adapter import is_added
from forge.config.model.tensors import TensorSpec
from forge.config.parallel import Parallel
from forge.models.decoder import Decoder
from forge.models.dropout import Jitter, StreamDropout
from forge.models.head import Head
from forge.models.mixers.indexer import Indexer
from forge.models.mixers.mamba2 import GatedGroupNorm
from forge.models.norm import NormOfHeads, eps_for
from forge.models.positions import Positions, Sinusoids
from forge.models.rope import PositionTable, Rotation
from forge.models.skips.engram import Engram
from forge.models.skips.smear import Smear
from forge.objectives.value_head import ValueHead
from forge.parallel.collectives import (
    gather,
    gather_equal,
    scatter_sum,
    sum_gradient,
    sum_over,
)
from forge.parallel.mesh import Mesh
from forge.parallel.modules import (
    Sequences,
    cut_sequences,
    further_blocks,
    layers_of,
    mix_in,
    mix_in_each,
)
from forge.parallel.placed_parameters import See, added_once, place_parameter
from forge.tensors.local import local


class Width:
    """The ranks with parts of each matrix, and the way of hidden states into and out of layers."""

    def __init__(self, mesh: DeviceMesh, sequences: Sequences, sequence_parallel: bool) -> None:
        self.mesh, self.sequences, self.sequence_parallel = mesh, sequences, sequence_parallel
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    @property
    def cut(self) -> bool:
        """Whether hidden states between layers are this rank's part, [batch, seq / size, dim]."""
        return self.sequence_parallel and self.sequences.cut

    def enter(self, x: Tensor) -> Tensor:
        """Hidden states between layers -> [batch, seq, dim], for different uses on each rank."""
        return gather(x, 1, self.group) if self.cut else sum_gradient(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """A rank's summand of [batch, seq, dim] -> the sum, in the layout between layers."""
        return scatter_sum(x, 1, self.group) if self.cut else sum_over(x, self.group)

    def part(self, rows: int) -> slice:
        """This rank's part of `rows` rows, as torch.chunk cuts them."""
        size = -(-rows // self.size)
        return slice(min(self.rank * size, rows), min((self.rank + 1) * size, rows))


def spread_width(model: Decoder, parallel: Parallel, mesh: Mesh) -> None:
    """Cut a decoder or a stage over the tp ranks, in place, while on the meta device.

    A layer is a child of a block with cut tensors. Every rank has the whole of tensors absent from
    the section's table. Experts are cut by `forge.parallel.expert`. Raises ValueError for a layer
    without a cut in the table.
    """
    width = Width(mesh.tp, cut_sequences(model), parallel.sequence_parallel)
    table = model.table
    inside: set[str] = set()  # in layers, where ranks use a common tensor for different heads
    blocks = [(f"blocks.{number}", block) for number, block in model.blocks.named_children()]
    blocks += [(f"mtp.{n}.block", block) for n, block in enumerate(further_blocks(model))]
    for path, block in blocks:
        for child, layer in block.named_children():
            names = {f"{path}.{child}.{name}" for name, _ in layer.named_parameters()}
            if any(name in table and table[name].tp is not None for name in names):
                mix_in(layer, Layer, over_tp=width)
                inside |= names
            elif layer in layers_of(block):
                label = f"parallel.tp={width.size}: {type(layer).__name__} in {path}.{child}"
                raise ValueError(f"{label} has no tensor that tensors() of its section cuts (tp=)")
    for path, _ in list(model.named_parameters()):
        spec = table.get(path)
        if spec is None or not spec.of_experts:
            module, _, name = path.rpartition(".")
            # An adapter around layers is used by each rank for its rows of a table.
            placement, see = _plan(spec, width, inside=path in inside or is_added(path))
            place_parameter(model.get_submodule(module), name, width.mesh, [placement], see)
    mix_in_each(model, SEAMS, over_tp=width)
    # A later stage sees cut hidden states and no tokens: rotation needs the full length.
    if not model.reads_tokens:
        mix_in_each(model, {PositionTable: WholeRotation}, over_tp=width)
    mix_in(model, SpreadDecoder, over_tp=width, loss_parallel=parallel.loss_parallel)


def _plan(spec: TensorSpec | None, width: Width, *, inside: bool) -> tuple[Placement, See]:
    """The placement of a parameter, and the parameter's view in the layer's own forward."""
    cut = spec.cut(width.size) if spec is not None else None
    if cut is not None:
        return Shard(cut), local
    if spec is not None and spec.once:
        return Replicate(), partial(added_once, width.group)
    piece = _own_piece(spec, width) if spec is not None and spec.tp is not None else None
    return Replicate(), partial(_whole, width, inside=inside, piece=piece)


def _own_piece(spec: TensorSpec, width: Width) -> tuple[int, int, int]:
    """(dim, start, size) of the piece read by a rank's queries, where pieces, for example heads of
    keys, are fewer than ranks.
    """
    assert spec.tp is not None
    assert width.size % spec.pieces == 0, spec
    size = spec.shape[spec.tp] // spec.pieces
    return spec.tp, width.rank * spec.pieces // width.size * size, size


def _whole(
    width: Width, parameter: DTensor, *, inside: bool, piece: tuple[int, int, int] | None
) -> Tensor:
    """The whole parameter, or a piece (dim, start, size)."""
    # Ranks that see different heads or tokens each have a summand of the gradient.
    summed = [Partial()] if inside or width.cut else None
    values = parameter.to_local(grad_placements=summed)
    return values if piece is None else values.narrow(*piece)


class Layer:
    """Mixin of attention, feed-forward or experts: reads whole sequences, and returns a summand."""

    over_tp: Width

    @property
    def summands(self) -> int:
        return self.over_tp.size

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        return self.leave(super().forward(self.over_tp.enter(x), *rest, **named))  # type: ignore[misc]

    def leave(self, y: Tensor) -> Tensor:
        """A rank's summand -> the layer's output."""
        return self.over_tp.leave(y)


class Rows:
    """Mixin of the embedding table: a rank has some rows; tokens of other rows give 0."""

    over_tp: Width
    num_embeddings: int

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.over_tp.part(self.num_embeddings)
        owned = (tokens >= rows.start) & (tokens < rows.stop)
        embeddings = super().forward((tokens - rows.start).where(owned, 0))  # type: ignore[misc]
        return self.over_tp.leave(embeddings.where(owned.unsqueeze(-1), 0))


class PartOfPositions:
    """Mixin of a table of added positions: cut like the hidden states."""

    over_tp: Width

    def forward(self, index: Tensor) -> Tensor:
        """[..., seq] -> [..., seq, dim], or this rank's part."""
        width = self.over_tp
        part = index.chunk(width.size, -1)[width.rank] if width.cut else index
        return super().forward(part)  # type: ignore[misc]


class WholeRotation:
    """Mixin of a table of positions in a stage with cut hidden states: all positions for
    attention.
    """

    over_tp: Width

    def forward(self, start: int, seq: int) -> Rotation:
        """Tables of the positions in attention."""
        full_length = seq * self.over_tp.size if self.over_tp.cut else seq
        return super().forward(start, full_length)  # type: ignore[misc]


class PartOfNoise:
    """Mixin of a module that draws between layers: cut like the hidden states."""

    over_tp: Width

    def here(self) -> Tensor:
        return self.cut(super().here())  # type: ignore[misc]

    def cut(self, whole: Tensor) -> Tensor:
        """[batch, seq] -> this rank's part."""
        width = self.over_tp
        return whole.chunk(width.size, 1)[width.rank] if width.cut else whole


class SmearOfWhole:
    """Mixin of a smear or a memory: on whole sequences, since a token reads the token before."""

    over_tp: Width

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        width, smear = self.over_tp, super().forward  # type: ignore[misc]
        if not width.cut:
            return smear(x, *rest)
        return smear(width.enter(x), *rest).chunk(width.size, 1)[width.rank]


class NormOverRanks:
    """Mixin of a norm over all heads, of which this rank has some.

    Where ranks share heads of keys, all heads have equally many copies.
    """

    over_tp: Width
    weight: Any
    scale_of: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., heads of this rank, head_dim]."""
        width, flat = self.over_tp, x.flatten(-2)
        wide = flat.to(torch.promote_types(x.dtype, torch.float32))
        # Ranks have equally many heads: the mean of their means is the mean over all heads.
        squares = sum_over(wide.square().mean(-1, keepdim=True), width.group)
        # Ranks use the mean for different heads: its gradient is a sum over ranks.
        mean = sum_gradient(squares, width.group) / width.size
        y = (wide * (mean + eps_for(self, x)).rsqrt()).to(x.dtype)
        if self.weight is not None:
            y = (y * self.scale_of(x)).to(self.weight.dtype)
        return y.view_as(x)


class GroupsOverRanks:
    """Mixin of a norm of groups of channels, where several ranks may share a group."""

    over_tp: Width
    group: int

    def mean_square(self, x: Tensor) -> Tensor:
        ranks, own = self.over_tp, x.shape[-1]
        if own % self.group == 0:
            return super().mean_square(x)  # type: ignore[misc]
        number, sharing = ranks.size * own // self.group, self.group // own
        mine = torch.arange(number, device=x.device) == ranks.rank // sharing
        sums = sum_over(x.square().sum(-1, keepdim=True) * mine, ranks.group)
        # Ranks use the sums for different channels: their gradient is a sum over ranks.
        sums = sum_gradient(sums, ranks.group)
        return sums[..., ranks.rank // sharing, None] / self.group


class AttentionOverRanks:
    """Mixin of an indexer: it foresees the attention of all ranks' heads, alike on each rank."""

    over_tp: Width

    @property
    def summands(self) -> int:
        return self.over_tp.size

    def over_heads(self, shares: Tensor) -> Tensor:
        return sum_over(shares, self.over_tp.group)


class ValueOverRanks:
    """Mixin of a value head: each rank reads its part of the hidden states' width."""

    over_tp: Width

    def forward(self, hidden: Tensor) -> Tensor:
        width = self.over_tp
        part = hidden[..., width.part(hidden.shape[-1])]
        return sum_over(super().forward(part), width.group)  # type: ignore[misc]


SEAMS: dict[type, type] = {
    Positions: PartOfPositions,
    Sinusoids: PartOfPositions,
    NormOfHeads: NormOverRanks,
    GatedGroupNorm: GroupsOverRanks,
    Indexer: AttentionOverRanks,
    Smear: SmearOfWhole,
    Engram: SmearOfWhole,
    ValueHead: ValueOverRanks,
    nn.Embedding: Rows,
    StreamDropout: PartOfNoise,
    Jitter: PartOfNoise,
}
"""Mixins by the type of modules around layers."""


class SpreadDecoder:
    """Mixin of the model: its head reads whole sequences, and has rows on every rank."""

    over_tp: Width
    section: Any
    norm: Any
    multiplied_weight: Tensor
    of_logits: dict[str, float]

    def to_head(self, x: Tensor) -> Tensor:
        x = super().to_head(x)  # type: ignore[misc]
        return x if self.norm is None else self.over_tp.enter(x)

    def spread_head(self) -> SpreadHead:
        rows = self.section.vocab_size
        return SpreadHead(self.multiplied_weight, self.over_tp, rows, **self.of_logits)


class SpreadHead(Head):
    """An output head with rows spread over the tp ranks."""

    def __init__(self, weight: Tensor, width: Width, vocab_size: int, **of_logits: Any) -> None:
        super().__init__(weight, **of_logits)
        self.width, self.vocab_size = width, vocab_size
        self.first = width.part(vocab_size).start

    def logits(self, hidden: Tensor) -> Tensor:
        # The last ranks may have fewer rows: the vocabulary need not divide by tp.
        return gather_equal(super().logits(hidden), -1, self.width.group, self.vocab_size)

    def largest(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MAX)

    def total(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        values = values.contiguous()
        dist.all_reduce(values, how, group=self.width.group)
        return values
