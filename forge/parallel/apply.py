"""Every technique that changes how a model runs, in the order they go on."""

from __future__ import annotations

import torch
from torch import nn

from forge.config.root import Config
from forge.parallel.activation_checkpoint import recompute
from forge.parallel.compile import compile_blocks
from forge.parallel.fsdp import shard
from forge.parallel.mesh import Mesh

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def apply(model: nn.Module, cfg: Config, mesh: Mesh | None = None) -> nn.Module:
    """Lay the model out as the config says, in place, and return it. mesh: null on one device, where it stays the plain module.

    1. Activation checkpointing, first: the compiler must see what it recomputes.
    2. Compilation, a block at a time, of all that is inside the block by then.
    3. FSDP, last: it gathers and frees the parameters around all of it.

    Parameter names are those of the plain model throughout.
    """
    recompute(model, cfg.train.activation_checkpointing)
    if cfg.train.compile_model:
        compile_blocks(model, cfg.train.compile_backend)
    if mesh is not None:
        shard(model, mesh, param_dtype=AUTOCAST.get(cfg.precision.mixed_precision))
    return model
