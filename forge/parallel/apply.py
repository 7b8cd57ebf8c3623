"""Every technique that changes how a model runs, in the order they go on."""

from __future__ import annotations

from torch import nn

from forge.config.root import Config
from forge.parallel.activation_checkpoint import recompute
from forge.parallel.compile import compile_blocks


def apply(model: nn.Module, cfg: Config) -> nn.Module:
    """Lay the model out as the config says, in place, and return it. One device.

    1. Activation checkpointing, first: the compiler must see what it recomputes.
    2. Compilation, a block at a time, of all that is inside the block by then.

    Parameter names are those of the plain model throughout.
    """
    recompute(model, cfg.train.activation_checkpointing)
    if cfg.train.compile_model:
        compile_blocks(model, cfg.train.compile_backend)
    return model
