"""Initial weights of a model that is laid out: each rank draws the rows it owns."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from forge.adapters.packed import initial_values, packed_in
from forge.models.init import init_weights
from forge.tensors.local import local, owned
from forge.tensors.masters import add_masters, master, round_masters


def materialize(
    model: nn.Module,
    device: torch.device,
    seed: int | None,
    *,
    buffers: torch.device | None = None,
    masters: bool = False,
) -> None:
    """Allocate a model built on the meta device and fill it as `init_weights` does, to the bit.

    seed: null = the caller fills the parameters. buffers: their device, if not that of the
    parameters. masters: keep the drawn fp32 values too. Raises ValueError for a buffer without a
    value from the model.
    """
    # Several threads draw, and an Apple GPU is not for several threads.
    first = torch.device("cpu") if device.type == "mps" else device
    allocate(model, first, buffers=buffers if first == device else None)
    # Before `fill_weights`: values are drawn into the fp32 masters, then rounded.
    if masters:
        add_masters(model)
    if seed is None:
        model.reset_buffers()  # type: ignore[operator]
    else:
        fill_weights(model, seed)
    check_buffers(model)
    if first != device:
        model.to(device)


def fill_weights(model: nn.Module, seed: int) -> None:
    """Give a model the initial weights of a seed; each rank fills its rows."""
    packed = packed_in(model)
    init_weights(
        model, seed, held=_held, but={name for weights in packed for name in weights.names}
    )
    for weights in packed:
        weights.fill(initial_values(model, weights.name, weights.shape, seed))
    round_masters(model)


def _held(parameter: Tensor) -> tuple[Tensor, list[Tensor]]:
    return local(master(parameter)).detach(), owned(parameter)


def allocate(
    model: nn.Module, device: torch.device, *, buffers: torch.device | None = None
) -> None:
    """Give a model on the meta device memory; buffers are filled with NaN, for `check_buffers`."""
    model.to_empty(device=device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffers is not None and buffers != device:
                setattr(module, name, buffer.to(buffers))
            if buffer.is_floating_point():
                getattr(module, name).fill_(math.nan)


def check_buffers(model: nn.Module) -> None:
    """Raise ValueError for buffers without a value since `allocate`."""
    unset = [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and bool(buffer.isnan().any())
    ]
    if unset:
        message = f"{type(model).__name__}.reset_buffers() gives {', '.join(unset)} no value"
        raise ValueError(f"{message}; a model is built without memory, so it sets every buffer")
