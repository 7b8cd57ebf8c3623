"""fp32 masters: the weights that are trained, where the model has them rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from forge.config.adapters.adapter import is_added
from forge.tensors.local import local


def add_masters(model: nn.Module) -> None:
    """Give each trained parameter room for its master, laid out as it is."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.master = torch.empty_like(  # type: ignore[attr-defined]
                parameter, dtype=torch.float32, requires_grad=False
            )


def master(parameter: Tensor) -> Tensor:
    """What is trained: the master of a parameter, or where it has none the parameter."""
    return getattr(parameter, "master", parameter)


def exact_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model by name, masters in place of what is rounded from them; its tensors are
    those of the model.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    masters = {name: master(p) for name, p in parameters if hasattr(p, "master")}
    return {**model.state_dict(), **masters}


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """The same without weights of the model that are not trained; what adapters add is in it."""
    parameters = model.named_parameters()
    frozen = {name for name, p in parameters if not p.requires_grad and not is_added(name)}
    return {name: values for name, values in exact_state(model).items() if name not in frozen}


@torch.no_grad()
def round_masters(model: nn.Module) -> None:
    """Make the weights of a model those of its masters, after these were filled or loaded."""
    for parameter in model.parameters():
        if hasattr(parameter, "master"):
            local(parameter).copy_(local(parameter.master))  # type: ignore[arg-type]


@torch.no_grad()
def round_weights(weights: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Round weights to a format, in the format that they have."""
    for parameter in weights:
        shard = local(parameter)
        if shard.dtype.itemsize > dtype.itemsize:
            shard.copy_(shard.to(dtype))
