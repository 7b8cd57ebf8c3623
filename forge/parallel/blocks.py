"""Where a model keeps the blocks that techniques are applied to one by one."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The transformer blocks, in order: the children of `model.blocks`. ValueError where a model
    has none.
    """
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleDict | nn.ModuleList | nn.Sequential):
        raise ValueError(
            f"model._target_: {type(model).__name__} keeps no transformer blocks in a ModuleDict or ModuleList named `blocks`"
        )
    return list(blocks.children())
