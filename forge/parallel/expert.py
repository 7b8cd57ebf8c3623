"""Expert parallelism (GShard, arXiv:2006.16668): each ep rank has some of the experts.

Every ep rank draws its own data. Assignments are sorted by expert, and so by rank; ranks exchange
counts, then tokens (all-to-all), and the receiver sorts them by expert. With a capacity all send
equal numbers and no counts are needed. Under tp each rank has a part of the hidden width of its
experts, and their output is a summand.

With parallel.ep_method=all_gather each rank reads the tokens of all ep ranks in training, runs its
experts on those that chose them, and the outputs are summed over ranks (reduce-scatter). No number
of rows is needed on the CPU: the host never waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from forge.config.model.tensors import TensorSpec
from forge.models.dispatch import Order, Room, fill_rows, rearrange, scale_gradient
from forge.models.experts import Experts
from forge.models.moe import MoE
from forge.models.router import Routed
from forge.parallel.collectives import (
    exchange,
    exchange_counts,
    exchange_rows,
    gather,
    scatter_sum,
)
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in_each
from forge.parallel.overlap.expert_parts import RowsInParts, TokensInParts
from forge.parallel.placed_parameters import added_once, place_parameter
from forge.tensors.local import local

Run = Callable[[Tensor, Tensor], Tensor]
"""Experts: rows [n, dim], sorted by expert, and the numbers of rows of each -> [n, dim]."""


def spread_experts(model: Any, mesh: Mesh, table: Iterable[TensorSpec] | None = None) -> None:
    """Cut the experts of a model or a stage over ep and tp, in place, while on the meta device.

    table: specs of the tensors; null = the model's own.
    """
    ep, tp = mesh.parallel.ep, mesh.parallel.tp
    if ep * tp == 1:
        return
    # The mesh of experts as FSDP sees the axes.
    over: DeviceMesh = mesh.tp if ep == 1 else mesh.experts[("ep", "tp") if tp > 1 else ("ep",)]
    rows = {spec.name: spec for spec in table or model.table.values() if spec.of_experts}
    for path in [path for path, _ in model.named_parameters() if path in rows]:
        cut = rows[path].tp
        hidden: Placement = Replicate() if cut is None else Shard(cut)
        layer, _, name = path.rpartition(".")
        cuts = [Shard(0)] * (ep > 1) + [hidden] * (tp > 1)
        see = local
        if tp > 1 and rows[path].once:
            see = partial(added_once, mesh.tp.get_group())
        elif tp > 1 and cut is None:
            see = partial(_used_apart, cuts)
        place_parameter(model.get_submodule(layer), name, over, cuts, see)
    if ep > 1:
        _exchange(model, mesh)


def _exchange(model: Any, mesh: Mesh) -> None:
    """Have mixtures exchange rows or gather tokens, as the layout says."""
    layout, group = mesh.parallel, mesh.axes.get_group("ep")
    parts, options = layout.ep_overlap_degree, dict[str, Any](over_ep=group)
    mixins: tuple[type, type] = (OverRanks, OverRanksInParts)
    if layout.gathers_tokens:
        mixins = (OverGatheredTokens, OverGatheredTokensInParts)
        options["rows_factor"] = layout.ep_rows_factor
        for module in model.modules():
            if isinstance(module, Experts):
                module.partly_filled = True
    if parts > 1:
        options["overlap_degree"] = parts
    mix_in_each(model, {MoE: mixins[parts > 1]}, **options)


def _used_apart(cuts: Sequence[Placement], parameter: DTensor) -> Tensor:
    """A parameter on all tp ranks, multiplied with different parts of the hidden width."""
    return parameter.to_local(grad_placements=[*cuts[:-1], Partial()])


class OverRanks:
    """Mixin of a mixture of experts: sends the rows of each expert to the expert's rank."""

    over_ep: dist.ProcessGroup

    def run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], sorted by expert; counts: [experts] -> [n, dim]."""
        of_ranks = counts.unflatten(0, (self.over_ep.size(), -1))
        come = exchange_counts(counts, self.over_ep).view_as(of_ranks)  # [rank, own expert]
        # The only wait for the device: sizes of an all-to-all are numbers on the CPU.
        send, receive = torch.stack((of_ranks.sum(1), come.sum(1))).tolist()
        x = exchange_rows(x, send, receive, self.over_ep)
        y = self.run_received(x, come, super().run_experts)  # type: ignore[misc]
        return exchange_rows(y, receive, send, self.over_ep)

    def run_received(self, x: Tensor, come: Tensor, run: Run) -> Tensor:
        """Run this rank's experts on x: [n, dim], sorted by rank, then by expert.

        come: [rank, own expert], numbers of rows.
        """
        expert = torch.arange(come.shape[1], device=x.device).repeat(len(come))
        expert = expert.repeat_interleave(come.flatten(), output_size=len(x))
        # Stable: rows of an expert stay in the order of ranks, so results do not vary.
        by_expert = expert.argsort(stable=True)
        indices = torch.arange(len(x), device=x.device)
        back = torch.empty_like(by_expert).scatter_(0, by_expert, indices)
        y = run(rearrange(x, by_expert, back), come.sum(0))
        return rearrange(y, back, by_expert)

    def run_equal(self, x: Tensor) -> Tensor:
        """x: [experts, rows, dim] -> [experts, rows, dim]; every rank has as many rows."""
        y = super().run_equal(exchange(x, 0, 1, self.over_ep))  # type: ignore[misc]
        return exchange(y, 1, 0, self.over_ep)


class OverGatheredTokens(OverRanks):
    """Mixin of a mixture of experts: in training a rank's experts read the tokens of all ranks.

    With a capacity, and outside training, rows are exchanged as in `OverRanks`. rows_factor: rows
    for a rank's experts, in even shares; 0 = as many as can come. Where more come, all outputs are
    NaN, so that the step counts as not finite and its update is skipped: no row is lost unnoticed.
    """

    rows_factor: float

    def mix(self, x: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """x: [tokens, dim] -> [tokens, dim]."""
        moe: Any = self
        if rows is not None or not (moe.training and torch.is_grad_enabled()):
            return super().mix(x, routed, found, rows)  # type: ignore[misc]
        group, factor = self.over_ep, None
        routing = [gather(routed.weights, 0, group)]
        routing.append(gather(routed.experts.to(torch.int32), 0, group))
        if moe.section.gradient_scale:
            factor = moe.gradient_factor(found, None)[found.place].view_as(routed.weights)
            routing.append(gather(factor.to(routed.weights.dtype), 0, group))
        return self.mix_gathered(x, tuple(routing))

    def mix_gathered(self, x: Tensor, routing: tuple[Tensor, ...]) -> Tensor:
        """Sum the outputs of the experts of each token: [tokens, dim] of this rank, the same.

        routing: as in `outputs_here`.
        """
        moe: Any = self
        y = self.outputs_here(gather(x, 0, self.over_ep), routing, moe.experts)
        return scatter_sum(y, 0, self.over_ep)

    def outputs_here(self, x: Tensor, routing: Sequence[Tensor], run: Run) -> Tensor:
        """Sum the weighted outputs of this rank's experts, for x: [tokens, dim] of all ranks.

        routing: weights, experts and where gradients are scaled their factors, [tokens, top_k].
        run: the experts.
        """
        moe: Any = self
        section, ranks, (weights, chosen, *factors) = moe.section, self.over_ep.size(), routing
        experts, (tokens, top_k) = section.num_experts // ranks, chosen.shape
        most = tokens * min(top_k, experts)
        even = math.ceil(self.rows_factor * (tokens // ranks) * top_k)
        room, counts, too_many = place_chosen(
            chosen.flatten() - self.over_ep.rank() * experts,
            experts,
            min(even, most) if even else most,
        )
        entering = copy_to_rows(x, room, top_k)
        of_rows = fill_rows(weights.reshape(-1, 1), room)
        if section.score_on_input:
            entering = (entering * of_rows).to(x.dtype)
        factor = factors[0].flatten()[room.source] if factors else None
        if factor is not None:
            entering = scale_gradient(entering, 1 / factor)
        y = run(entering, counts)
        y = y if factor is None else scale_gradient(y, factor)
        y = y if section.score_on_input else y * of_rows
        return sum_of_rows(y, room, top_k).to(x.dtype).masked_fill(too_many, torch.nan)


class OverRanksInParts(RowsInParts, OverRanks):
    """Mixin of a mixture of experts: rows are exchanged in parts, beside the experts."""


class OverGatheredTokensInParts(TokensInParts, OverGatheredTokens, OverRanksInParts):
    """Mixin of a mixture of experts: tokens are gathered in parts, beside the experts.

    With a capacity rows are exchanged, in parts too.
    """


def place_chosen(chosen: Tensor, experts: int, rows: int) -> tuple[Room, Tensor, Tensor]:
    """Rows for the assignments of this rank's experts, sorted by expert, without a wait.

    chosen: [n], the expert of each assignment; outside of 0 ... experts - 1 it is another rank's.
    Returns the rows, the number of rows of each expert, and whether there are more than `rows`.
    """
    key = chosen.where((chosen >= 0) & (chosen < experts), experts)
    # Stable: rows of an expert stay in the order of ranks, so results do not vary.
    by_expert = key.argsort(stable=True)
    index = torch.arange(len(key), device=key.device)
    place = torch.empty_like(by_expert).scatter_(0, by_expert, index)
    numbers = torch.arange(experts + 1, device=key.device, dtype=key.dtype)
    edges = torch.searchsorted(key[by_expert], numbers)
    ends = edges.clamp(max=rows)
    filled, kept = index[:rows] < ends[-1], place < ends[-1]
    room = Room(by_expert[:rows], filled, place.clamp(max=rows - 1), kept)
    return room, ends.diff(), edges[-1] > rows


def copy_to_rows(x: Tensor, room: Room, copies: int) -> Tensor:
    """Copy x: [tokens, dim] to the rows of each token's assignments, `copies` of each token."""
    return _Copied.apply(x, room, copies, False)


def sum_of_rows(y: Tensor, room: Room, copies: int) -> Tensor:
    """Sum y: [rows, dim] over the rows of each token's assignments -> [tokens, dim]."""
    return _Copied.apply(y, room, copies, True)


class _Copied(torch.autograd.Function):
    """Copies of tokens in rows, or with `back` the sums of rows; each is the other's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, room: Room, copies: int, back: bool) -> Tensor:
        ctx.save_for_backward(*room)
        ctx.copies, ctx.back = copies, back
        return (_sums if back else _copies)(x, room, copies)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        room = Room(*ctx.saved_tensors)
        return (_copies if ctx.back else _sums)(grad, room, ctx.copies), None, None, None


def _copies(x: Tensor, room: Room, copies: int) -> Tensor:
    return x[room.source // copies].where(room.filled.unsqueeze(1), 0)


def _sums(y: Tensor, room: Room, copies: int) -> Tensor:
    slots, kept = (tensor.unflatten(0, (-1, copies)) for tensor in (room.slot, room.kept))
    # One choice after the other: a fixed order of the sum, without a copy of all rows.
    total = y.new_zeros(len(slots), y.shape[1], dtype=torch.promote_types(y.dtype, torch.float32))
    for choice in range(copies):
        total += y[slots[:, choice]].where(kept[:, choice].unsqueeze(1), 0)
    return total.to(y.dtype)
