"""Initial weights of a model that is laid out: each rank draws the rows it owns, and no rank ever holds the whole."""

from __future__ import annotations

import torch
from torch import nn

from forge.models.init import init_weights
from forge.parallel.owned import local, owned


def materialize(
    model: nn.Module, device: torch.device, seed: int, *, buffers: torch.device | None = None, num_threads: int | None = None
) -> None:
    """Allocate a model built on the meta device and fill it as `init_weights` fills a whole one, to the bit.

    A tied weight is drawn once, under its first name. buffers: their device, where it is another one than that of the parameters.
    """
    model.to_empty(device=device)
    if buffers is not None and buffers != device:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(buffers))
    init_weights(model, seed, held=lambda values: (local(values), owned(values)), num_threads=num_threads)  # type: ignore[arg-type]
