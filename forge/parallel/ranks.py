"""The ranks of a run: how this process joins them, and the few things that all of them agree on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forge.config.root import Config
from forge.parallel.context import own_part
from forge.parallel.half import HALF
from forge.parallel.mesh import Mesh, make_mesh
from forge.parallel.rendezvous import Meeting


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among all; alone, everything here is immediate."""

    rank: int = 0
    size: int = 1
    mesh: Mesh | None = None
    host: dist.ProcessGroup | None = None  # of the CPUs, for what is agreed on between steps
    saver: dist.ProcessGroup | None = None  # another, for a save that goes on meanwhile
    meeting: Meeting | None = None
    device: torch.device | None = None
    timeout: timedelta = timedelta(0)  # of a collective

    @property
    def main(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0

    @property
    def batch(self) -> tuple[int, int]:
        """Which part of the batch this rank draws, of how many."""
        return (self.mesh.batch_rank, self.mesh.batch_ranks) if self.mesh is not None else (0, 1)

    def own_part(self, values: Tensor) -> Tensor:
        """[batch, seq] -> what this rank reads of each sequence: its part under context
        parallelism, else all.
        """
        return (
            values
            if self.mesh is None or self.mesh.parallel.cp == 1
            else own_part(values, self.mesh)
        )

    def total(self, values: Tensor) -> Tensor:
        """The sum over all ranks that hold a part of the batch, in place; does not wait for the
        device.
        """
        if self.mesh is not None and self.size > 1:
            dist.all_reduce(values, group=self.mesh.loss_group)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank; all ask at the same point."""
        return bool(self.largest(int(flag))[0])

    def largest(self, *numbers: int) -> list[int]:
        """Of each number the largest that any rank has; all ask at the same point."""
        if self.host is None:
            return list(numbers)
        votes = torch.tensor(numbers)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.host)
        return votes.tolist()

    def of_all(self, value: Any) -> list[Any]:
        """What each rank has, in their order; all ask at the same point."""
        if self.host is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.host)
        return found

    def from_main(self, value: Any) -> Any:
        """What the main rank has."""
        if self.host is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def copy_from_main(self, values: Tensor) -> Tensor:
        """What the main rank has, in place, on the device of this rank."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values

    def barrier(self) -> None:
        """Until all ranks are here."""
        if self.host is not None:
            dist.barrier(group=self.host)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main rank goes through before the others, which find what it has made; it may take
        hours, beyond any timeout.
        """
        with self.meeting.main_first(self.timeout) if self.meeting is not None else nullcontext():
            yield

    def check_alive(self, step: int) -> None:
        """Raises ConnectionError naming the ranks that are not here within the timeout of a
        collective; waits for the device too.
        """
        if self.meeting is None:
            return
        missing = self.meeting.missing(step, self.timeout)
        if missing:
            raise ConnectionError(
                _no_sign_of_life(missing, self.size, step, self.timeout.total_seconds())
            )
        ones = torch.ones((), device=self.device)
        dist.all_reduce(ones)
        found = ones.item()
        if found != self.size:
            raise ConnectionError(
                f"an all-reduce of ones over {self.size} ranks is {found:g} at step {step}: their connection is faulty"
            )

    def close(self) -> None:
        """Leave together, once the main rank has written all: who starts ranks takes the end of one
        for the end of all.
        """
        if self.mesh is not None and dist.is_initialized():
            self.barrier()
            dist.destroy_process_group()


def join(config: Config, device: torch.device, meeting: Meeting | None = None) -> Ranks:
    """Meet the ranks that the launcher's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name; alone
    where there is one.

    One rank that multiplies in 16 bits is a mesh too, so that FSDP holds its 16-bit weights as it
    does over many. Raises ValueError when they do not come, or parallel.backend is none.
    """
    size, parallel = int(os.environ.get("WORLD_SIZE", 1)), config.parallel
    if size == 1 and config.precision.mixed_precision not in HALF:
        return Ranks()
    if size == 1:
        if not dist.is_initialized():  # of an earlier run in this process that failed, it is
            store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(
                _backend(parallel.backend, device.type), store=store, rank=0, world_size=1
            )
        return Ranks(mesh=make_mesh(parallel, device.type), device=device)
    timeout, meeting, rank = (
        timedelta(seconds=parallel.nccl_timeout_sec),
        meeting or Meeting(),
        int(os.environ["RANK"]),
    )
    backend = _backend(parallel.backend, device.type)
    try:
        # Not bound to a device: NCCL then makes a communicator for those groups of the mesh alone
        # that are used, at their first use.
        dist.init_process_group(
            backend, store=meeting.store, rank=rank, world_size=size, timeout=timeout
        )
    except dist.DistError:
        raise
    except (
        ValueError,
        KeyError,
        AssertionError,
        RuntimeError,
    ) as error:  # torch has no type of its own for it
        raise ValueError(
            f"parallel.backend={parallel.backend} cannot be used for {device.type}: {error}"
        ) from error
    host, saver = (_group_of_all(timeout) for _ in range(2))
    mesh = make_mesh(parallel, device.type)
    for group in mesh.groups():  # torch gives those that a mesh makes a timeout of its own
        dist.distributed_c10d._set_pg_timeout(timeout, group)
    return Ranks(
        rank=rank,
        size=size,
        mesh=mesh,
        host=host,
        saver=saver,
        meeting=meeting,
        device=device,
        timeout=timeout,
    )


def _group_of_all(timeout: timedelta) -> dist.ProcessGroup:
    """A group of all ranks' CPUs."""
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _no_sign_of_life(missing: list[int], size: int, step: int, seconds: float) -> str:
    which = "rank " if len(missing) == 1 else "ranks "
    which += ", ".join(str(rank) for rank in missing)
    where = ", ".join(f"logs/rank_{rank}.log" for rank in missing[:8])
    return f"no sign of life from {which} of {size} at step {step} within parallel.nccl_timeout_sec={seconds:g}; see {where}"


def _backend(wanted: str, device_type: str) -> str:
    """Of 'cpu:gloo,cuda:nccl' what a device needs: on a CPU a build without NCCL would refuse the
    rest.

    One is given by its name alone: torch 2.13 warns at the end of a group that was made with
    'cpu:gloo'.
    """
    named = [part for part in wanted.split(",") if part.partition(":")[0] in ("cpu", device_type)]
    return (
        wanted
        if ":" not in wanted
        else named[0].partition(":")[2]
        if len(named) == 1
        else ",".join(named)
    )
