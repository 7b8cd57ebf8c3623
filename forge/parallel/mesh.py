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
    pipeline's stages one has the loss, others zero. stages: pp, tokens = dp_replicate * fsdp, tp.
    experts: pp, dp_replicate, efsdp = dp_shard * cp, ep, tp; with ep = 1 the same as dense. torch
    has no public call to flatten slices of one mesh.
    """

    parallel: Parallel
    axes: DeviceMesh
    dense: DeviceMesh
    sums: DeviceMesh
    stages: DeviceMesh
    experts: DeviceMesh

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
        return self._sharded(self.dense, "fsdp")

    @property
    def experts_fsdp(self) -> DeviceMesh:
        """The same for experts, where ep is above 1."""
        return self._sharded(self.experts, "efsdp")

    def _sharded(self, view: DeviceMesh, axis: str) -> DeviceMesh:
        return view["dp_replicate", axis] if self.parallel.dp_replicate > 1 else view[axis]

    @property
    def tp(self) -> DeviceMesh:
        return self.dense["tp"]

    @property
    def loss_group(self) -> dist.ProcessGroup:
        """The ranks over which the loss is summed."""
        return self.sums.get_group("tokens")

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """The ranks of a stage with a part of a micro-batch's tokens, in the order of the batch."""
        return self.stages.get_group("tokens")

    def groups(self) -> list[dist.ProcessGroup]:
        views = (self.axes, self.dense, self.sums, self.stages, self.experts)
        distinct = {id(view): view for view in views}.values()
        return [group for view in distinct for group in view.get_all_groups()]


def make_mesh(parallel: Parallel, device_type: str) -> Mesh:
    """torch.distributed is initialised with as many ranks as the layout has."""
    p, fsdp, efsdp = parallel, parallel.fsdp, parallel.efsdp
    pp, replicas = {"pp": p.pp}, {"dp_replicate": p.dp_replicate}

    def view(**axes: int) -> DeviceMesh:
        sizes = {**axes, "tp": p.tp}
        return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    dense, sums = view(**pp, **replicas, fsdp=fsdp), view(tokens=p.pp * p.dp_replicate * fsdp)
    return Mesh(
        parallel=parallel,
        axes=view(**pp, **replicas, dp_shard=p.dp_shard, cp=p.cp, ep=p.ep),
        dense=dense,
        sums=sums,
        stages=view(**pp, tokens=p.dp_replicate * fsdp) if p.pp > 1 else sums,
        experts=view(**pp, **replicas, efsdp=efsdp, ep=p.ep) if p.ep > 1 else dense,
    )
