"""Replicas of a model: the first reads a checkpoint, and sends it to the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from forge.tensors.local import local

if TYPE_CHECKING:
    from forge.training.session import Session


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The ranks with the same part of the model as this rank, one of each replica.

    device: that the group's collectives run on.
    """

    group: dist.ProcessGroup
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this rank belongs to the first replica."""
        return dist.get_rank(self.group) == 0

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Give this rank's parts the bits of the first replica's parts, in place and in order."""
        for tensor in tensors:
            part = local(tensor.detach())
            if not part.numel():
                continue
            # As bytes: NCCL and gloo lack some of the formats. Parts on the host pass the device,
            # since a mesh of GPUs may have no group of CPUs.
            values = part.contiguous().reshape(-1).view(torch.uint8).to(self.device)
            dist.broadcast(values, group=self.group, group_src=0)
            if not self.first:
                part.copy_(values.to(part.device).view(part.dtype).view(part.shape))


def replicas_of(session: Session) -> Replicas | None:
    """The replicas that a checkpoint is sent to; null = every rank reads its own parts."""
    mesh, config = session.ranks.mesh, session.config
    asked = config.checkpoint.read_by_one_replica
    if mesh is None or config.parallel.dp_replicate == 1 or not asked:
        return None
    return Replicas(group=mesh.dense.get_group("dp_replicate"), device=session.device)
