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
    """Full tensors on the main rank, and the names of those whose copies differ in a bit."""

    tensors: Tensors = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


def gather(named: Iterable[tuple[str, Tensor | None]], ranks: Ranks) -> Gathered:
    """All that ranks have, from all shards and stages; a collective.

    named: what this rank has of tensors, by name in the whole model; None if it has no tensor.
    """
    own: dict[str, list[Tensor | None]] = {}
    for name, value in named:  # the first and last stage on one rank: two copies of a tied table
        own.setdefault(name, []).append(value)
    if ranks.host is None:
        found = {
            name: None if value is None else local(value.detach()).clone()
            for name, (value,) in own.items()
        }
        return Gathered(tensors=found)
    result, digests = Gathered(), {}
    for name, (owners, about) in _owners(own, ranks).items():
        if about is None:
            result.tensors[name] = None
            continue
        copies = [_full(value) for value in own.get(name, ())]
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
    """By name: the ranks that have it, its shape and dtype, or None if a rank has no tensor."""
    described = ranks.of_all(
        {
            name: [None if v is None else (tuple(v.shape), v.dtype) for v in copies]
            for name, copies in own.items()
        }
    )
    found = {}
    for name in sorted(set().union(*described)):
        owners = [rank for rank, names in enumerate(described) if name in names]
        about = [one for rank in owners for one in described[rank][name]]
        found[name] = (owners, None if None in about else about[0])
    return found


def _full(value: Tensor | None) -> Tensor:
    """All of a tensor, a copy on the CPU; a collective of the ranks with parts of it."""
    assert value is not None
    value = value.detach()
    if isinstance(value, DTensor):
        # What is offloaded goes through the collectives of the device.
        on_device = value.to(value.device_mesh.device_type)
        assert isinstance(on_device, DTensor)
        value = on_device.full_tensor()
    return value.cpu().contiguous().clone()
