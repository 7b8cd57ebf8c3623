"""The start of a rank: the process groups and the mesh that it joins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from forge.config.root import Config
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parallel.rendezvous import Rendezvous


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
