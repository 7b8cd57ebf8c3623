"""Private parts of torch's FSDP: groups of ranks made once, the parameters of a sharded module,
parameters of few bits, gathered unchanged, and gradients stored in fewer bits than weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fsdp_param, _fully_shard

from forge.adapters.packed import few_bits

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


class _Torch:
    """torch.nn with another Parameter: no gradient for integers, as torch 2.11 would give."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def Parameter(data: Tensor, requires_grad: bool = True) -> nn.Parameter:
        return nn.Parameter(data, requires_grad and data.is_floating_point())


@contextmanager
def integers() -> Iterator[None]:
    """Inside, FSDP takes integer parameters."""
    # FSDP makes its shards by `nn.Parameter` in this module of torch.
    _fsdp_param.nn = _Torch()  # type: ignore[assignment]
    try:
        yield
    finally:
        _fsdp_param.nn = nn  # type: ignore[reportPrivateImportUsage]


def keep_formats(model: nn.Module) -> None:
    """Have packed weights of few bits gathered unchanged, whatever param_dtype is."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        group = param_group(module)
        for param in group.fsdp_params if group else ():
            where = param._module_info
            if any(where.param_name in packed.attributes for packed in few_bits(where.module)):
                # FSDP sets formats at the first forward, by this method of each parameter.
                param.init_dtype_attrs = partial(_as_it_is, param)


def _as_it_is(param: Any, policy: MixedPrecisionPolicy) -> None:
    """Replace FSDP's choice of formats, a cast of numbers, and in torch 2.11 of integers too."""
    param.orig_dtype = param.sharded_param.dtype
    param.param_dtype = param.reduce_dtype = None


def store_gradients(model: nn.Module, dtype: torch.dtype) -> None:
    """Have the trained parameters store gradients in `dtype`; FSDP after it has reduced them.

    Call it on allocated parameters: torch forgets `grad_dtype` when a parameter is replaced.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad_dtype = dtype  # type: ignore[attr-defined]
    for module in model.modules():
        if isinstance(module, FSDPModule) and (group := param_group(module)) is not None:
            # FSDP sets formats at the first forward, by this method of the group.
            group._init_mp_dtypes = partial(_store_in, group, dtype)


def _store_in(group: Any, dtype: torch.dtype) -> None:
    """Set FSDP's formats of a group, and have reduced gradients cast to `dtype`, not to the format
    of the weights; nothing else reads `_orig_dtype` (torch 2.11 to 2.13).
    """
    type(group)._init_mp_dtypes(group)
    if group._orig_dtype is not None:  # None = all parameters are frozen
        group._orig_dtype = dtype
