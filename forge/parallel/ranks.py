"""The ranks of a run: how this process joins the ranks, and agreement between all ranks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forge.config.root import Config
from forge.parallel.mesh import Mesh, make_mesh
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


def join_ranks(config: Config, device: torch.device, rendezvous: Rendezvous | None = None) -> Ranks:
    """Join the ranks named by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; no others if unset.

    A single rank has a mesh too where FSDP casts its weights to the format of products, or keeps
    them on the CPU. Raises ValueError when other ranks do not come, or parallel.backend
    cannot be used.
    """
    size, parallel = int(os.environ.get("WORLD_SIZE", 1)), config.parallel
    apart = config.diloco.enabled
    if size == 1 and not config.one_rank_has_fsdp:
        return Ranks()
    backend = _backend(parallel.backend, device.type)
    if size == 1:
        if not dist.is_initialized():  # it is after a run in this process that failed
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return Ranks(mesh=make_mesh(parallel, device.type, apart=apart), device=device)
    timeout, rank = timedelta(seconds=parallel.nccl_timeout_sec), int(os.environ["RANK"])
    rendezvous = rendezvous or Rendezvous()
    store = rendezvous.store
    with _usable(parallel.backend, device.type):
        # Not bound to a device: NCCL then makes communicators at first use, for used groups only.
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    host, saver = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
    mesh = make_mesh(parallel, device.type, apart=apart)
    for group in mesh.groups():  # a mesh gives its groups torch's default timeout
        dist.distributed_c10d._set_pg_timeout(timeout, group)
    return Ranks(
        rank=rank,
        size=size,
        mesh=mesh,
        host=host,  # type: ignore[arg-type]
        saver=saver,  # type: ignore[arg-type]
        rendezvous=rendezvous,
        device=device,
        timeout=timeout,
        train_timeout=timedelta(seconds=parallel.train_timeout_sec),
    )


@contextmanager
def _usable(backend: str, device_type: str) -> Iterator[None]:
    """Raise ValueError naming the backend where torch has no such backend for the device."""
    try:
        yield
    except dist.DistError:
        raise
    except (ValueError, KeyError, AssertionError, RuntimeError) as error:
        message = f"parallel.backend={backend} cannot be used for {device_type}"
        raise ValueError(f"{message}: {error}") from error


def _backend(wanted: str, device_type: str) -> str:
    """The parts of 'cpu:gloo,cuda:nccl' for a device: a build without NCCL refuses the rest.

    A single part is its name alone: torch 2.13 warns at the end of a group of 'cpu:gloo'.
    """
    if ":" not in wanted:
        return wanted
    parts = [part for part in wanted.split(",") if part.partition(":")[0] in ("cpu", device_type)]
    return parts[0].partition(":")[2] if len(parts) == 1 else ",".join(parts)
