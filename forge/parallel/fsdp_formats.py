"""FSDP of parameters that keep weights in few bits: integers, and numbers that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_param

from forge.adapters.packed import few_bits
from forge.parallel.fsdp_groups import param_group


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


def _as_it_is(one: Any, policy: MixedPrecisionPolicy) -> None:
    """Replace FSDP's choice of formats, a cast of numbers, and in torch 2.11 of integers too."""
    one.orig_dtype = one.sharded_param.dtype
    one.param_dtype = one.reduce_dtype = None
