"""Private parts of FSDP: groups of ranks made once, and the parameters of a sharded module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard

NAME = "_get_post_forward_mesh_info"


@contextmanager
def groups_made_once() -> Iterator[None]:
    """Inside, fully_shard takes the groups of a number `reshard_after_forward` from its first call.

    torch 2.11 to 2.13 makes new communicators for each module, hundreds for a large model. With
    such a number all calls inside are on the same mesh: rule parallel.reshard_after_forward.
    """
    modules = [module for module in (_fsdp_init, _fully_shard) if hasattr(module, NAME)]
    original: Any = getattr(modules[0], NAME)
    made: dict[int, Any] = {}

    def once(reshard_after_forward: bool | int, mesh_info: Any) -> Any:
        if isinstance(reshard_after_forward, bool):
            return original(reshard_after_forward, mesh_info)
        if reshard_after_forward not in made:
            made[reshard_after_forward] = original(reshard_after_forward, mesh_info)
        return made[reshard_after_forward]

    for module in modules:
        setattr(module, NAME, once)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, NAME, original)


def param_group(module: FSDPModule) -> Any:
    """The group of parameters that FSDP gathers for a module, None for a module without any.

    The name is of torch 2.11, and torch 2.13 has it still.
    """
    return module._get_fsdp_state()._fsdp_param_group
