"""fp32 masters: the trained weights of a model with weights rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from forge.config.adapters.adapter import is_added
from forge.tensors.local import local


def add_masters(model: nn.Module) -> None:
    """Allocate a master for each trained parameter, laid out as the parameter."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.master = torch.empty_like(  # type: ignore[attr-defined]
                parameter, dtype=torch.float32, requires_grad=False
            )


def master(parameter: Tensor) -> Tensor:
    """The trained tensor: the master of a parameter, or without a master the parameter."""
    return getattr(parameter, "master", parameter)


def exact_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model by name, with masters in place of rounded weights; the tensors are the
    model's own.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    masters = {name: master(p) for name, p in parameters if hasattr(p, "master")}
    return {**model.state_dict(), **masters}


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The `exact_state` of a model without frozen weights, but with the weights of adapters."""
    parameters = model.named_parameters()
    frozen = {name for name, p in parameters if not p.requires_grad and not is_added(name)}
    return {name: values for name, values in exact_state(model).items() if name not in frozen}


@torch.no_grad()
def round_masters(model: nn.Module) -> None:
    """Set the weights of a model to the rounded masters, after masters were filled or loaded."""
    for parameter in model.parameters():
        if hasattr(parameter, "master"):
            local(parameter).copy_(local(parameter.master))  # type: ignore[arg-type]


@torch.no_grad()
def round_weights(weights: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Round weights to the values of a format, without a change of their own format."""
    for parameter in weights:
        shard = local(parameter)
        if shard.dtype.itemsize > dtype.itemsize:
            shard.copy_(shard.to(dtype))
