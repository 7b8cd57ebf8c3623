"""Adapters initialised with the largest singular values and vectors of a weight (PiSSA).

The weight keeps the rest (arXiv:2404.02948). The part taken out is stored beside the weight, also
in checkpoints. The base of a checkpoint gives the same rest again, without a second decomposition.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from forge.config.adapters.adapter import TAKEN_A, TAKEN_B, A, B, adapter_name
from forge.config.model.tensors import TensorSpec
from forge.tensors.local import copy_local, full
from forge.tensors.masters import master


@torch.no_grad()
def take_out(model: nn.Module, scales: Mapping[TensorSpec, float]) -> None:
    """Initialise A and B with the largest singular part of each matrix; a collective.

    Covers the matrices of this rank's stages. scales: the factors of B A.
    """
    parameters = dict(model.named_parameters())
    for matrix, scale in scales.items():
        if matrix.name not in parameters:
            continue  # of another stage
        pair = [parameters[adapter_name(matrix, part)] for part in (TAKEN_A, TAKEN_B)]
        a, b = _principal_factors(
            _wide(full(parameters[matrix.name].detach())), rank=pair[0].shape[-2]
        )
        for parameter, values in zip(pair, (a, b), strict=True):
            copy_local(parameter, values)
        a, b = (full(values.detach()) for values in pair)  # in the stored format
        for part, values in ((A, a), (B, _wide(b) / scale)):
            copy_local(parameters[adapter_name(matrix, part)], values)
            copy_local(master(parameters[adapter_name(matrix, part)]), values)
    leave_rest(model)


@torch.no_grad()
def leave_rest(model: nn.Module) -> None:
    """Subtract the initial adapters from weights, whole again by now; a collective."""
    parameters = dict(model.named_parameters())
    parts = getattr(model, "parts", [model])
    for matrix in getattr(parts[0], "table", {}).values():
        if matrix.name in parameters and adapter_name(matrix, TAKEN_A) in parameters:
            a, b = (
                full(parameters[adapter_name(matrix, part)].detach()) for part in (TAKEN_A, TAKEN_B)
            )
            copy_local(parameters[matrix.name], rest(full(parameters[matrix.name].detach()), a, b))


def rest(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return [..., out, in] minus B A, in the format of the weight."""
    return (_wide(weight) - _wide(b) @ _wide(a)).to(weight.dtype)


def _principal_factors(weight: Tensor, *, rank: int) -> tuple[Tensor, Tensor]:
    """Return A [..., rank, in] and B [..., out, rank] with B A nearest to the weight."""
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    roots = s[..., :rank].sqrt()
    return roots.unsqueeze(-1) * vh[..., :rank, :], u[..., :rank] * roots.unsqueeze(-2)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
