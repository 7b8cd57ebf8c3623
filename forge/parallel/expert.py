"""Expert parallelism (GShard, arXiv:2006.16668): each ep rank has some of the experts.

Every ep rank draws its own data. Assignments are sorted by expert, and so by rank; ranks exchange
counts, then tokens (all-to-all), and the receiver sorts them by expert. With a capacity all send
equal numbers and no counts are needed. Under tp each rank has a part of the hidden width of its
experts, and their output is a summand.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from forge.models.dispatch import rearrange
from forge.models.experts import Experts
from forge.models.moe import MoE
from forge.parallel.collectives import exchange, exchange_counts, exchange_rows
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in
from forge.parallel.owned import local

EXPERT = 0
HIDDEN = {"w_gate": 1, "w_up": 1, "w_down": 2}
"""The dimension of each packed weight that is an expert's hidden width."""


def spread_experts(model: nn.Module, mesh: Mesh) -> None:
    """Cut the experts of a model or a stage over ep and tp, in place, while on the meta device."""
    ep, tp = mesh.parallel.ep, mesh.parallel.tp
    for module in model.modules():
        if isinstance(module, Experts) and ep * tp > 1:
            _place(module, mesh)
        if isinstance(module, MoE) and ep > 1:
            mix_in(module, OverRanks)
            module.group, module.ranks = mesh.axes.get_group("ep"), ep  # type: ignore[assignment]


def _place(experts: Experts, mesh: Mesh) -> None:
    """Make the weights DTensors on the mesh that FSDP takes for them."""
    parallel = mesh.parallel
    axes = ("ep",) * (parallel.ep > 1) + ("tp",) * (parallel.tp > 1)
    over: DeviceMesh = mesh.experts[axes] if parallel.ep > 1 else mesh.tp
    for name, weight in list(experts.named_parameters(recurse=False)):
        cuts = [Shard(EXPERT if axis == "ep" else HIDDEN[name]) for axis in axes]
        values = distribute_tensor(weight.detach(), over, cuts)
        experts.register_parameter(name, nn.Parameter(values))
    mix_in(experts, LocalExperts)


class LocalExperts:
    """Mixin of experts that computes with the local part of their weights."""

    def weights(self) -> tuple[Tensor, ...]:
        return tuple(local(weight) for weight in super().weights())  # type: ignore[misc]


class OverRanks:
    """Mixin of a mixture of experts: sends the rows of each expert to the rank that has it."""

    group: dist.ProcessGroup
    ranks: int

    def run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], sorted by expert; counts: [experts] -> [n, dim]."""
        of_ranks = counts.unflatten(0, (self.ranks, -1))
        come = exchange_counts(counts, self.group).view_as(of_ranks)  # [rank, own expert]
        send, receive = torch.stack((of_ranks.sum(1), come.sum(1))).tolist()
        x = exchange_rows(x, send, receive, self.group)
        expert = torch.arange(come.shape[1], device=x.device).repeat(self.ranks)
        expert = expert.repeat_interleave(come.flatten(), output_size=len(x))
        by_expert = expert.argsort(stable=True)
        places = torch.arange(len(x), device=x.device)
        back = torch.empty_like(by_expert).scatter_(0, by_expert, places)
        y = super().run_experts(rearrange(x, by_expert, back), come.sum(0))  # type: ignore[misc]
        return exchange_rows(rearrange(y, back, by_expert), receive, send, self.group)

    def run_equal(self, x: Tensor) -> Tensor:
        """x: [experts, rows, dim] -> the same; every rank has as many rows."""
        y = super().run_equal(exchange(x, 0, 1, self.group))  # type: ignore[misc]
        return exchange(y, 1, 0, self.group)
