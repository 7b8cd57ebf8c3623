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


class _Torch:
    """torch.nn, but for its Parameter: integers have no gradient, which torch 2.11 gives them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def Parameter(data: Tensor, requires_grad: bool = True) -> nn.Parameter:
        return nn.Parameter(data, requires_grad and data.is_floating_point())


@contextmanager
def integers() -> Iterator[None]:
    """Inside, FSDP takes parameters that are integers."""
    _fsdp_param.nn = _Torch()  # type: ignore[assignment]
    try:
        yield
    finally:
        _fsdp_param.nn = nn  # type: ignore[reportPrivateImportUsage]


def keep_formats(model: nn.Module) -> None:
    """Have what is kept of weights in few bits gathered as it is, whatever param_dtype is."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        group: Any = module._get_fsdp_state()._fsdp_param_group
        for one in group.fsdp_params if group else ():
            where = one._module_info
            if any(where.param_name in own.attributes for own in few_bits(where.module)):
                one.init_dtype_attrs = partial(_as_it_is, one)


def _as_it_is(one: Any, policy: MixedPrecisionPolicy) -> None:
    """In place of FSDP's choice of formats, which casts numbers, and in torch 2.11 integers too."""
    one.orig_dtype = one.sharded_param.dtype
    one.param_dtype = one.reduce_dtype = None
