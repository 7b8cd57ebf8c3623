"""Full tensors of a model that is laid out over ranks, gathered on the main one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.parallel.ranks import Ranks
from forge.tensors.local import local

Tensors = dict[str, Tensor | None]


@dataclass(kw_only=True)
class Gathered:
    """Full tensors on the main rank, and names of tensors with copies differing in a bit."""

    tensors: Tensors = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


def gather_on_main(named: Iterable[tuple[str, Tensor | None]], ranks: Ranks) -> Gathered:
    """Gather all tensors from all shards and stages on the main rank; a collective.

    named: this rank's tensors, by name in the whole model; None where the rank has no tensor.
    """
    local_copies: dict[str, list[Tensor | None]] = {}
    for name, value in named:  # the first and last stage on one rank: two copies of a tied table
        local_copies.setdefault(name, []).append(value)
    if ranks.host is None:
        tensors = {
            name: None if value is None else local(value.detach()).clone()
            for name, (value,) in local_copies.items()
        }
        return Gathered(tensors=tensors)
    result, digests = Gathered(), {}
    # The order of names is equal on all ranks: each name is a collective of its owners.
    for name, (owners, about) in _owners(local_copies, ranks).items():
        if about is None:
            result.tensors[name] = None
            continue
        copies = [_full(value) for value in local_copies.get(name, ())]
        contents = (value.numpy().tobytes() for value in copies)
        digests[name] = {hashlib.blake2b(content, digest_size=8).digest() for content in contents}
        value = copies[0] if copies else None
        if owners[0] == ranks.rank != 0:
            assert value is not None
            dist.send(value, dst=0, group=ranks.host)
        elif ranks.main and 0 not in owners:
            value = torch.empty(about[0], dtype=about[1])
            dist.recv(value, src=owners[0], group=ranks.host)
        if ranks.main:
            result.tensors[name] = value
    of_ranks = ranks.of_all(digests)
    for name in digests:
        if len(set().union(*(of_rank[name] for of_rank in of_ranks))) > 1:
            result.differing.append(name)
    return result


def _owners(
    own: dict[str, list[Tensor | None]], ranks: Ranks
) -> dict[str, tuple[list[int], tuple[tuple[int, ...], torch.dtype] | None]]:
    """The ranks with each tensor, its shape and dtype, or None if a rank has no tensor; by name."""
    described = ranks.of_all(
        {
            name: [None if v is None else (tuple(v.shape), v.dtype) for v in copies]
            for name, copies in own.items()
        }
    )
    owners_by_name = {}
    for name in sorted(set().union(*described)):
        owners = [rank for rank, names in enumerate(described) if name in names]
        about = [description for rank in owners for description in described[rank][name]]
        owners_by_name[name] = (owners, None if None in about else about[0])
    return owners_by_name


def _full(value: Tensor | None) -> Tensor:
    """The full tensor, a copy on the CPU; a collective of the ranks with parts of the tensor."""
    assert value is not None
    value = value.detach()
    if isinstance(value, DTensor):
        # An offloaded tensor goes through the collectives of the device.
        on_device = value.to(value.device_mesh.device_type)
        assert isinstance(on_device, DTensor)
        value = on_device.full_tensor()
    return value.cpu().contiguous().clone()
