"""Tensor parallelism (arXiv:1909.08053): ranks share heads, feed-forward width and vocabulary.

With sequence parallel (arXiv:2205.05198) hidden states between layers are cut along the sequence: a
layer begins with an all-gather and ends with a reduce-scatter instead of an all-reduce. Parameters
are DTensors; layers compute with their local parts.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from forge.config.parallel import Parallel
from forge.models.attention import Attention
from forge.models.decoder import Block, Decoder
from forge.models.feed_forward import FeedForward
from forge.models.head import Head
from forge.models.moe import MoE
from forge.parallel.collectives import gather, gather_equal, scatter_sum, sum_gradient, sum_over
from forge.parallel.mesh import Mesh
from forge.parallel.modules import Sequences, cut_sequences, mix_in

ALWAYS, WHERE_CUT, NEVER = "always", "where sequences are cut", "never"


class Width:
    """The ranks that share each matrix, and how hidden states go into and out of shared layers."""

    def __init__(self, mesh: DeviceMesh, sequences: Sequences, sequence_parallel: bool) -> None:
        self.mesh, self.sequences, self.sequence_parallel = mesh, sequences, sequence_parallel
        self.group, self.rank, self.size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    @property
    def cut(self) -> bool:
        """Whether hidden states between layers are this rank's part, [batch, seq / size, dim]."""
        return self.sequence_parallel and self.sequences.cut

    def enter(self, x: Tensor) -> Tensor:
        """Hidden states between layers -> [batch, seq, dim], which ranks use differently."""
        return gather(x, 1, self.group) if self.cut else sum_gradient(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """A rank's summand of [batch, seq, dim] -> the sum, as hidden states are between layers."""
        return scatter_sum(x, 1, self.group) if self.cut else sum_over(x, self.group)

    def part(self, rows: int) -> slice:
        """This rank's part of `rows` rows, as torch.chunk cuts them."""
        size = -(-rows // self.size)
        return slice(min(self.rank * size, rows), min((self.rank + 1) * size, rows))


def spread_width(model: Decoder, parallel: Parallel, mesh: Mesh) -> None:
    """Cut a decoder or a stage over the tp ranks, in place, while on the meta device."""
    width = Width(mesh.tp, cut_sequences(model), parallel.sequence_parallel)
    for module in model.modules():
        if isinstance(module, Attention):
            _spread_attention(module, width)
        elif isinstance(module, Block):
            for norm in (module.attention_norm, module.feed_forward_norm):
                _change(norm, Norm, width, Replicate())
            if isinstance(module.feed_forward, MoE):
                _spread_mixture(module.feed_forward, width)
            else:
                _spread_feed_forward(module.feed_forward, width, Summed)
                _change(module.feed_forward, Entered, width)
    if model.embedding is not None:
        _change(model.embedding, Rows, width, Shard(0))
    if model.positions is not None:
        _change(model.positions, Positions, width, Replicate())
    if model.norm is not None:
        _change(model.norm, Last, width, Replicate())
    if model.output is not None:
        _change(model.output, Local, width, Shard(0))
    if model.rotary is not None and not model.reads_tokens:
        _change(model.rotary, Rotation, width)
    _change(model, SpreadDecoder, width)
    model.loss_parallel = parallel.loss_parallel  # type: ignore[assignment]


def _spread_attention(attention: Attention, width: Width) -> None:
    heads, kv_heads = (
        each.out_features // attention.head_dim for each in (attention.wq, attention.wk)
    )
    _change(attention.wq, Local, width, Shard(0))
    for linear in (attention.wk, attention.wv):
        if kv_heads % width.size == 0:
            _change(linear, Local, width, Shard(0))
        else:
            _change(linear, SharedHead, width, Replicate())
            first = width.rank * heads // width.size // (heads // kv_heads) * attention.head_dim
            linear.rows = slice(first, first + attention.head_dim)  # type: ignore[assignment]
    for norm in (attention.q_norm, attention.k_norm):
        if not isinstance(norm, nn.Identity):
            _change(norm, OfHeads, width, Replicate())
    _change(attention.wo, Summed, width, Shard(1), bias=Replicate())
    _change(attention, Entered, width)


def _spread_feed_forward(layer: FeedForward, width: Width, last: type) -> None:
    for linear in (layer.w_gate, layer.w_up):
        if linear is not None:
            _change(linear, Local, width, Shard(0))
    _change(layer.w_down, last, width, Shard(1), bias=Replicate())


def _spread_mixture(layer: MoE, width: Width) -> None:
    """All but the experts (`forge.parallel.expert`). Routed and shared ones are summed at once."""
    _change(layer.router, SharedRouter, width, Replicate())
    if layer.shared is not None:
        _spread_feed_forward(layer.shared, width, Local)
    layer.summands = width.size
    _change(layer, Mixture, width)


def _change(
    module: nn.Module,
    mixin: type,
    width: Width,
    placement: Placement | None = None,
    *,
    bias: Placement | None = None,
) -> None:
    """Mix in a class, and place the module's own parameters."""
    mix_in(module, mixin)
    module.width = width  # type: ignore[assignment]
    for name, parameter in module.named_parameters(recurse=False):
        place = bias if name == "bias" and bias is not None else placement
        assert place is not None, name
        values = distribute_tensor(parameter.detach(), width.mesh, [place])
        module.register_parameter(name, nn.Parameter(values))


class Local:
    """Mixin of a linear layer with rows on each rank: computes with the local part."""

    width: Width
    sums_gradient = NEVER  # whether that of a replicated parameter is the sum of the ranks'
    _parameters: dict[str, nn.Parameter | None]

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.local()
        return F.linear(x, weight, bias)

    def local(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, with gradients."""
        weight, bias = self._local("weight"), self._local("bias")
        assert weight is not None
        return weight, bias

    def _local(self, name: str) -> Tensor | None:
        parameter = self._parameters.get(name)
        if not isinstance(parameter, DTensor):
            return parameter
        summed = self.sums_gradient == ALWAYS or (
            self.sums_gradient == WHERE_CUT and self.width.cut
        )
        if summed and isinstance(parameter.placements[-1], Replicate):
            return parameter.to_local(grad_placements=[Partial()])
        return parameter.to_local()


class Norm(Local):
    """Mixin of a norm between attention and feed-forward: sees a part of cut sequences."""

    sums_gradient = WHERE_CUT

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, *self.local())  # type: ignore[attr-defined]


class OfHeads(Norm):
    """Mixin of a norm of heads: each rank has some of them."""

    sums_gradient = ALWAYS


class SharedHead(Local):
    """Mixin of keys or values with fewer heads than ranks: computes what its queries read."""

    sums_gradient = ALWAYS
    rows: slice

    def local(self) -> tuple[Tensor, Tensor | None]:
        weight, bias = super().local()
        return weight[self.rows], None if bias is None else bias[self.rows]


class Summed(Local):
    """Mixin of the last layer of attention or feed-forward: a rank has columns, outputs add up."""

    sums_gradient = WHERE_CUT

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, inputs of this rank] -> hidden states between layers."""
        weight, bias = self.local()
        x = self.width.leave(F.linear(x, weight))
        return x if bias is None else x + bias


class Entered:
    """Mixin of attention and feed-forward: they read whole sequences."""

    width: Width

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return super().forward(self.width.enter(x), *rest)  # type: ignore[misc]


class Mixture(Entered):
    """Mixin of a mixture of experts: its output is a summand."""

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return self.width.leave(super().forward(x, *rest))


class SharedRouter(Local):
    """Mixin of a router: all ranks choose the same experts, and have a part of their output."""

    sums_gradient = ALWAYS

    def forward(self, x: Tensor) -> Any:
        return super(Local, self).forward(x)  # type: ignore[misc]

    def matrix(self) -> Tensor:
        return self.local()[0]


class Last(Norm):
    """Mixin of the last norm: the output head reads whole sequences."""

    def forward(self, x: Tensor) -> Tensor:
        return self.width.enter(super().forward(x))


class Rows(Local):
    """Mixin of the embedding table: a rank has some rows; what it cannot look up is 0."""

    num_embeddings: int

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.width.part(self.num_embeddings)
        here = (tokens >= rows.start) & (tokens < rows.stop)
        found = F.embedding((tokens - rows.start).where(here, 0), self.local()[0])
        return self.width.leave(found.where(here.unsqueeze(-1), 0))


class Positions(Local):
    """Mixin of a table of learned positions: cut as the hidden states it is added to."""

    sums_gradient = WHERE_CUT

    def forward(self, index: Tensor) -> Tensor:
        """[seq] -> [seq, dim], or this rank's part of it."""
        part = index.chunk(self.width.size)[self.width.rank] if self.width.cut else index
        return F.embedding(part, self.local()[0])


class Rotation:
    """Mixin of the rotary table of a stage that gets cut hidden states: attention reads all."""

    width: Width

    def forward(self, start: int, seq: int) -> tuple[Tensor, Tensor]:
        """The rotation of the positions that attention sees."""
        whole = seq * self.width.size if self.width.cut else seq
        return super().forward(start, whole)  # type: ignore[misc]


class SpreadDecoder:
    """Mixin of the model: its head has rows on every rank."""

    width: Width
    section: Any
    output: Local | None
    embedding: Local

    @property
    def output_weight(self) -> Tensor:
        return (self.output if self.output is not None else self.embedding).local()[0]

    def spread_head(self) -> SpreadHead:
        return SpreadHead(self.output_weight, self.width, self.section.vocab_size)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.spread_head().logits(hidden)


class SpreadHead(Head):
    """An output head whose rows are spread over the tp ranks."""

    def __init__(self, weight: Tensor, width: Width, vocab_size: int) -> None:
        super().__init__(weight)
        self.width, self.vocab_size = width, vocab_size
        self.first = width.part(vocab_size).start

    def logits(self, hidden: Tensor) -> Tensor:
        return gather_equal(F.linear(hidden, self.weight), -1, self.width.group, self.vocab_size)

    def largest(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.MAX)

    def total(self, values: Tensor) -> Tensor:
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: Tensor, how: Any) -> Tensor:
        values = values.contiguous()
        dist.all_reduce(values, how, group=self.width.group)
        return values
