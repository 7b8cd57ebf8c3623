"""One world of ranks, seen through the meshes that techniques ask for by role."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from forge.config.parallel import Parallel


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Meshes over the same ranks in the same order, slowest axis first.

    axes: pp, dp_replicate, dp_shard, cp, ep, tp. dense: pp, dp_replicate, fsdp = dp_shard * cp *
    ep, tp; for parameters other than experts. sums: tokens = pp * dp_replicate * fsdp, tp; of a
    pipeline's stages the last has the loss, others zero. stages: pp, tokens = dp_replicate * fsdp,
    tp. experts: pp, dp_replicate, efsdp = dp_shard * cp, ep, tp; with ep = 1 the same as dense.
    torch has no public call to flatten slices of a mesh. apart: whether the replicas of
    dp_replicate have weights of their own, see `forge.training.callbacks.diloco`.
    """

    parallel: Parallel
    axes: DeviceMesh
    dense: DeviceMesh
    sums: DeviceMesh
    stages: DeviceMesh
    experts: DeviceMesh
    apart: bool = False

    @property
    def replicas(self) -> int:
        """Number of replicas with weights of their own."""
        return self.parallel.dp_replicate if self.apart else 1

    @property
    def replica(self) -> int:
        """This rank's number among the replicas with weights of their own."""
        return self.dense.get_local_rank("dp_replicate") if self.apart else 0

    @property
    def batch_ranks(self) -> int:
        """Number of ranks with separate data."""
        return self.parallel.dp_replicate * self.parallel.dp_shard * self.parallel.ep

    @property
    def batch_rank(self) -> int:
        """This rank's number among the batch ranks, shared within a tp, cp or pp group."""
        index = 0
        for axis in ("dp_replicate", "dp_shard", "ep"):
            index = index * getattr(self.parallel, axis) + self.axes.get_local_rank(axis)
        return index

    @property
    def fsdp(self) -> DeviceMesh:
        """The mesh for fully_shard: 1-D, or 2-D with replicas first."""
        return self._sharded(self.dense, "fsdp")

    @property
    def experts_fsdp(self) -> DeviceMesh:
        """The mesh for fully_shard of experts, where ep is above 1."""
        return self._sharded(self.experts, "efsdp")

    def _sharded(self, view: DeviceMesh, axis: str) -> DeviceMesh:
        reduces = self.parallel.dp_replicate > 1 and not self.apart
        return view["dp_replicate", axis] if reduces else view[axis]

    def with_replicas(self, mesh: DeviceMesh) -> DeviceMesh:
        """The mesh of a dense parameter with the replicas as its first axis."""
        assert mesh.mesh_dim_names is not None
        return self.dense["dp_replicate", *mesh.mesh_dim_names]

    @property
    def tp(self) -> DeviceMesh:
        return self.dense["tp"]

    @property
    def loss_group(self) -> dist.ProcessGroup:
        """The ranks in the sum of the loss."""
        return self.sums.get_group("tokens")

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """The ranks of a stage with a part of a micro-batch's tokens, in the order of the batch."""
        return self.stages.get_group("tokens")

    def groups(self) -> list[dist.ProcessGroup]:
        views = (self.axes, self.dense, self.sums, self.stages, self.experts)
        distinct = {id(view): view for view in views}.values()
        return [group for view in distinct for group in view.get_all_groups()]


def make_mesh(parallel: Parallel, device_type: str, *, apart: bool = False) -> Mesh:
    """Build the meshes of a layout; torch.distributed is initialised with the layout's ranks.

    apart: as in `Mesh`.
    """
    p, fsdp, efsdp = parallel, parallel.fsdp, parallel.efsdp
    pp, replicas = {"pp": p.pp}, {"dp_replicate": p.dp_replicate}

    def view(**axes: int) -> DeviceMesh:
        sizes = {**axes, "tp": p.tp}
        return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    # Where meshes coincide (pp = 1, ep = 1) a mesh is used twice, without new groups.
    dense, sums = view(**pp, **replicas, fsdp=fsdp), view(tokens=p.pp * p.dp_replicate * fsdp)
    return Mesh(
        parallel=parallel,
        axes=view(**pp, **replicas, dp_shard=p.dp_shard, cp=p.cp, ep=p.ep),
        dense=dense,
        sums=sums,
        stages=view(**pp, tokens=p.dp_replicate * fsdp) if p.pp > 1 else sums,
        experts=view(**pp, **replicas, efsdp=efsdp, ep=p.ep) if p.ep > 1 else dense,
        apart=apart,
    )
