"""Adapters that begin as the largest singular values and vectors of a weight, which keeps the rest
(PiSSA, arXiv:2404.02948).

What was taken out stays beside the weight, and in checkpoints, so that the base that these name
gives the same rest again, without a second decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from forge.config.adapters.adapter import TAKEN_A, TAKEN_B, A, B, name_of
from forge.config.model.tensors import TensorSpec
from forge.tensors.local import copy_local, full
from forge.tensors.masters import master


@torch.no_grad()
def take_out(model: nn.Module, scales: Mapping[TensorSpec, float]) -> None:
    """Have A and B of each matrix, or of those that this rank's stages have, begin so; a
    collective. scales: what B A is multiplied by.
    """
    own = dict(model.named_parameters())
    for one, scale in scales.items():
        if one.name not in own:
            continue  # of another stage
        pair = [own[name_of(one, which)] for which in (TAKEN_A, TAKEN_B)]
        a, b = largest(_wide(full(own[one.name].detach())), rank=pair[0].shape[-2])
        for room, values in zip(pair, (a, b), strict=True):
            copy_local(room, values)
        a, b = (full(values.detach()) for values in pair)  # as they are kept
        for which, values in ((A, a), (B, _wide(b) / scale)):
            copy_local(own[name_of(one, which)], values)
            copy_local(master(own[name_of(one, which)]), values)
    leave_rest(model)


@torch.no_grad()
def leave_rest(model: nn.Module) -> None:
    """Take out of weights, which are whole again, what their adapters began as; a collective."""
    own = dict(model.named_parameters())
    parts = getattr(model, "parts", [model])
    for one in getattr(parts[0], "table", {}).values():
        if one.name in own and name_of(one, TAKEN_A) in own:
            a, b = (full(own[name_of(one, which)].detach()) for which in (TAKEN_A, TAKEN_B))
            copy_local(own[one.name], rest(full(own[one.name].detach()), a, b))


def rest(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """[..., out, in] without B A, in the format of the weight."""
    return (_wide(weight) - _wide(b) @ _wide(a)).to(weight.dtype)


def largest(weight: Tensor, *, rank: int) -> tuple[Tensor, Tensor]:
    """A [..., rank, in] and B [..., out, rank] whose product is the nearest of this rank."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    roots = values[..., :rank].sqrt()
    return roots.unsqueeze(-1) * right[..., :rank, :], left[..., :rank] * roots.unsqueeze(-2)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
