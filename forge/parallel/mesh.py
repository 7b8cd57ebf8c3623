"""One world of ranks, seen through the views that techniques ask for by role."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from forge.config.parallel import Parallel


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The views of one world, all over the same ranks in the same order, slowest axis first: pp, dp_replicate, dp_shard, cp, ep, tp.

    axes: all six. dense: (pp, dp_replicate, fsdp, tp), where fsdp = dp_shard * cp * ep, for parameters without experts.
    sums: (tokens, tp), where tokens = pp * dp_replicate * fsdp: every rank that has a part of the step's tokens, and the stages, of
    which one finds the loss and the others none.

    The views are meshes of their own and not slices flattened from one, which no public call of torch does.
    """

    parallel: Parallel
    axes: DeviceMesh
    dense: DeviceMesh
    sums: DeviceMesh

    @property
    def batch_ranks(self) -> int:
        """Ranks that draw data of their own."""
        return self.parallel.dp_replicate * self.parallel.dp_shard * self.parallel.ep

    @property
    def batch_rank(self) -> int:
        """Which of them this rank is; those of one tp, cp or pp group share the number."""
        index = 0
        for axis in ("dp_replicate", "dp_shard", "ep"):
            index = index * getattr(self.parallel, axis) + self.axes.get_local_rank(axis)
        return index

    @property
    def fsdp(self) -> DeviceMesh:
        """What fully_shard takes: 1-D, or 2-D with replicas first."""
        return self.dense["dp_replicate", "fsdp"] if self.parallel.dp_replicate > 1 else self.dense["fsdp"]

    @property
    def tp(self) -> DeviceMesh:
        """The ranks that share each matrix."""
        return self.dense["tp"]

    @property
    def loss_group(self) -> dist.ProcessGroup:
        """Over which the sums of a loss are added up."""
        return self.sums.get_group("tokens")

    def groups(self) -> list[dist.ProcessGroup]:
        """All groups of this rank."""
        return [group for mesh in (self.axes, self.dense, self.sums) for group in mesh.get_all_groups()]


def make_mesh(parallel: Parallel, device_type: str) -> Mesh:
    """The mesh of a layout; torch.distributed is initialised, and its world is the product of the degrees."""
    p = parallel
    fsdp = p.dp_shard * p.cp * p.ep
    axes = (p.pp, p.dp_replicate, p.dp_shard, p.cp, p.ep, p.tp)
    return Mesh(
        parallel=parallel,
        axes=init_device_mesh(device_type, axes, mesh_dim_names=("pp", "dp_replicate", "dp_shard", "cp", "ep", "tp")),
        dense=init_device_mesh(device_type, (p.pp, p.dp_replicate, fsdp, p.tp), mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp")),
        sums=init_device_mesh(device_type, (p.pp * p.dp_replicate * fsdp, p.tp), mesh_dim_names=("tokens", "tp")),
    )
