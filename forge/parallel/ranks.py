"""The ranks of a run, and agreement between all of them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forge.parallel.mesh import Mesh
from forge.parallel.rendezvous import Rendezvous, no_sign_of_life
from forge.parallel.sequences.part import own_part


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among all ranks. A single rank never communicates.

    host: group of the CPUs, for agreement between steps. saver: a second group of the CPUs, for a
    save during steps. timeout: of a collective. train_timeout: of devices after the first step.
    """

    rank: int = 0
    size: int = 1
    mesh: Mesh | None = None
    host: dist.ProcessGroup | None = None
    saver: dist.ProcessGroup | None = None
    rendezvous: Rendezvous | None = None
    device: torch.device | None = None
    timeout: timedelta = timedelta(0)
    train_timeout: timedelta = timedelta(0)

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def batch(self) -> tuple[int, int]:
        """(i, n): this rank draws the i-th of n parts of the batch."""
        return (self.mesh.batch_rank, self.mesh.batch_ranks) if self.mesh is not None else (0, 1)

    @property
    def replicas(self) -> tuple[int, int]:
        """(i, n): this rank is of the i-th of n replicas with weights of their own."""
        return (self.mesh.replica, self.mesh.replicas) if self.mesh is not None else (0, 1)

    def own_part(self, values: Tensor) -> Tensor:
        """[batch, seq] -> this rank's part of each sequence: under cp a part, else all."""
        if self.mesh is None or self.mesh.parallel.cp == 1:
            return values
        return own_part(values, self.mesh)

    def own_batch(
        self, batch: dict[str, Tensor], along_sequence: Collection[str], device: torch.device
    ) -> dict[str, Tensor]:
        """This rank's batch on its device; fields along the sequence are cut to this rank's
        part.
        """
        # A non-blocking copy to an Apple GPU reads memory already given away:
        # https://github.com/pytorch/pytorch/issues/189690
        wait = device.type != "cuda"
        moved = {name: tensor.to(device, non_blocking=not wait) for name, tensor in batch.items()}
        cut = {name: self.own_part(moved[name]) for name in along_sequence if name in moved}
        return moved | cut

    def total(self, values: Tensor, *, maximum: bool = False) -> Tensor:
        """The sum, or maximum, over ranks with a part of the batch, in place and asynchronous."""
        if self.mesh is not None and self.size > 1:
            reduction = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
            dist.all_reduce(values, reduction, group=self.mesh.loss_group)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. A collective."""
        return bool(self.largest(int(flag))[0])

    def largest(self, *numbers: int) -> list[int]:
        """The largest value on any rank of each number. A collective."""
        if self.host is None:
            return list(numbers)
        votes = torch.tensor(numbers)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.host)
        return votes.tolist()

    def of_all(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order. A collective."""
        if self.host is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.host)
        return values

    def from_main(self, value: Any) -> Any:
        """The main rank's value. A collective."""
        if self.host is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def copy_from_main(self, values: Tensor) -> Tensor:
        """The main rank's values, in place, on this rank's device. A collective."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values

    def copy_over_tp(self, values: Tensor) -> Tensor:
        """The values of the first rank of this tp group, in place. A collective of the group."""
        if self.mesh is not None and self.mesh.parallel.tp > 1:
            dist.broadcast(values, group=self.mesh.tp.get_group(), group_src=0)
        return values

    def barrier(self) -> None:
        if self.host is not None:
            dist.barrier(group=self.host)

    def after_first_step(self) -> None:
        """Shorten the timeout of devices' collectives: the first step compiled. A collective.

        Between hosts it stays: a save or an evaluation of one rank may take long.
        """
        if self.mesh is None or self.size == 1:
            return
        # A collective of the next step must not wait for a rank still in its first.
        self.barrier()
        assert dist.group.WORLD is not None
        for group in (dist.group.WORLD, *self.mesh.groups()):
            dist.distributed_c10d._set_pg_timeout(self.train_timeout, group)

    def main_first(self) -> AbstractContextManager[None]:
        """Let the main rank go through before the others; the others find the main rank's files.

        The main rank may take longer than any timeout.
        """
        return self.rendezvous.main_first(self.timeout) if self.rendezvous else nullcontext()

    def check_alive(self, step: int) -> None:
        """Raise ConnectionError naming the ranks absent after the timeout.

        Waits for the device too.
        """
        if self.rendezvous is None:
            return
        if missing := self.rendezvous.missing(step, self.timeout):
            when, seconds = f"of {self.size} at step {step}", self.timeout.total_seconds()
            raise ConnectionError(no_sign_of_life(missing, when, seconds))
        ones = torch.ones((), device=self.device)
        dist.all_reduce(ones)
        total = ones.item()
        if total != self.size:
            message = f"an all-reduce of ones over {self.size} ranks is {total:g} at step {step}"
            raise ConnectionError(f"{message}: their connection is faulty")

    def close(self) -> None:
        """Leave together, once the main rank has written all.

        Launchers take the end of one rank for the end of all.
        """
        if self.mesh is not None and dist.is_initialized():
            self.barrier()
            dist.destroy_process_group()
