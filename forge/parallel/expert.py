"""Expert parallelism (GShard, arXiv:2006.16668): each ep rank has some of the experts.

Every ep rank draws its own data. Assignments are sorted by expert, and so by rank; ranks exchange
counts, then tokens (all-to-all), and the receiver sorts them by expert. With a capacity all send
equal numbers and no counts are needed. Under tp each rank has a part of the hidden width of its
experts, and their output is a summand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from forge.config.model.tensors import TensorSpec
from forge.models.dispatch import rearrange
from forge.models.moe import MoE
from forge.parallel.collectives import exchange, exchange_counts, exchange_rows
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in_each
from forge.parallel.placed_parameters import added_once, place_parameter
from forge.tensors.local import local


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
        mix_in_each(model, {MoE: OverRanks}, over_ep=mesh.axes.get_group("ep"))


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
        expert = torch.arange(come.shape[1], device=x.device).repeat(self.over_ep.size())
        expert = expert.repeat_interleave(come.flatten(), output_size=len(x))
        # Stable: rows of an expert stay in the order of ranks, so results do not vary.
        by_expert = expert.argsort(stable=True)
        indices = torch.arange(len(x), device=x.device)
        back = torch.empty_like(by_expert).scatter_(0, by_expert, indices)
        y = super().run_experts(rearrange(x, by_expert, back), come.sum(0))  # type: ignore[misc]
        return exchange_rows(rearrange(y, back, by_expert), receive, send, self.over_ep)

    def run_equal(self, x: Tensor) -> Tensor:
        """x: [experts, rows, dim] -> [experts, rows, dim]; every rank has as many rows."""
        y = super().run_equal(exchange(x, 0, 1, self.over_ep))  # type: ignore[misc]
        return exchange(y, 1, 0, self.over_ep)
