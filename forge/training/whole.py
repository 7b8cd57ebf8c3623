"""Whole tensors of a model that is laid out over ranks, put together on the main one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.parallel.owned import local
from forge.parallel.ranks import Ranks

Found = dict[str, Tensor | None]


@dataclass(kw_only=True)
class Whole:
    """Tensors put together on the main rank, and the names of those whose copies differ in a bit."""

    tensors: Found = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)


def whole(named: Iterable[tuple[str, Tensor | None]], ranks: Ranks) -> Whole:
    """All that ranks have, one tensor after the other, from all shards and all stages of a
    pipeline.

    named: what this rank has, each tensor, or its part of one, by its name in the whole model. None
    where a rank that has the name has no tensor.
    """
    own: dict[str, list[Tensor | None]] = {}
    for name, value in named:
        own.setdefault(name, []).append(
            value
        )  # a rank with the first and the last stage has two copies of a tied table
    if ranks.host is None:
        return Whole(
            tensors={
                name: None if value is None else local(value.detach()).clone()
                for name, (value,) in own.items()
            }
        )
    result, digests = Whole(), {}
    for name, (owners, about) in _holders(own, ranks).items():
        if about is None:
            result.tensors[name] = None
            continue
        copies = [_full(value) for value in own.get(name, ())]
        digests[name] = {
            hashlib.blake2b(value.numpy().tobytes(), digest_size=8).digest() for value in copies
        }
        value = copies[0] if copies else None
        if owners[0] == ranks.rank != 0:
            assert value is not None
            dist.send(value, dst=0, group=ranks.host)
        elif ranks.main and 0 not in owners:
            value = torch.empty(about[0], dtype=about[1])
            dist.recv(value, src=owners[0], group=ranks.host)
        if ranks.main:
            result.tensors[name] = value
    seen = ranks.of_all(digests)
    result.apart = [
        name for name in digests if len(set().union(*(of_rank[name] for of_rank in seen))) > 1
    ]
    return result


def _holders(
    own: dict[str, list[Tensor | None]], ranks: Ranks
) -> dict[str, tuple[list[int], tuple[tuple[int, ...], torch.dtype] | None]]:
    """By name: the ranks that have the parameter, and the shape and type of the tensor, or None
    where one of them has no tensor.
    """
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
    """All of a tensor, on the CPU; the ranks that hold parts of it call this together."""
    assert value is not None
    value = value.detach()
    if isinstance(value, DTensor):
        # What is offloaded goes through the collectives of the device.
        there = value.to(value.device_mesh.device_type)
        assert isinstance(there, DTensor)
        value = there.full_tensor()
    return (
        value.cpu().contiguous().clone()
    )  # what one rank has whole is the memory that updates change
