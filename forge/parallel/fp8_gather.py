"""FSDP with weights gathered in fp8, by FSDP's hooks for tensors of other kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from forge.models.contract import StepReport
from forge.parallel.fsdp_private import param_group
from forge.quantization.fp8 import FP8
from forge.quantization.layers import QuantizedLinear
from forge.tensors.local import local


def gather_in_fp8(model: nn.Module, products: FP8) -> None:
    """Have every shard of a chosen matrix rounded to fp8 before the all-gather, in place.

    Parameters stay plain tensors: FSDP's hooks are set on the local tensor, as on torchao's
    WeightWithDynamicFloat8CastTensor, a kind that checkpoints and updates would inherit. Called
    when parameters have their memory.
    """
    linear = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    model.fp8_weights = Weights([_Shard(module, products) for module in linear])
    shards = {id(local(shard.weight)) for shard in model.fp8_weights.shards}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = param_group(module)
            for param in group.fsdp_params if group else ():
                if id(param._sharded_local_tensor) in shards:
                    param._init_extensions()  # looked at tensors on the meta device before


class _Shard:
    """This rank's part of a weight, and after an update the scale of the whole weight."""

    def __init__(self, module: QuantizedLinear, products: FP8) -> None:
        assert isinstance(module.weight, DTensor)
        assert products.by_torchao is not None
        self.weight, self.convert = module.weight, products.by_torchao.gathered
        self.scale: Tensor | None = None
        shard: Any = self.weight._local_tensor
        shard.fsdp_pre_all_gather = self.fsdp_pre_all_gather
        shard.fsdp_post_all_gather = self.fsdp_post_all_gather

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        shard: Tensor = self.weight._local_tensor
        # No update has left a scale yet: the first gather finds the maximum itself.
        if self.scale is None:
            largest = shard.abs().max() if shard.numel() else shard.new_zeros(())
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=mesh.get_group())
            self.scale = _scale(largest)
        return (self.convert.codes(shard, self.scale),), (self.scale,)

    def fsdp_post_all_gather(
        self, gathered: tuple[Tensor], metadata: Any, dtype: Any, *, out: Tensor | None = None
    ) -> Any:
        (codes,), (scale,) = gathered, metadata
        if out is not None:
            out._scale = scale  # type: ignore[attr-defined]
            return None
        return self.convert(codes, scale, dtype), (codes,)


class Weights(nn.Module):
    """Finds the scales of all weights after an update, by one collective."""

    def __init__(self, shards: list[_Shard]) -> None:
        super().__init__()
        self.shards = shards

    def begin_step(self, scale: Tensor | float) -> None:
        """Ignore the scale: nothing here depends on the scale."""

    @torch.no_grad()
    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor]
    ) -> StepReport:
        if self.shards:
            weights = [local(shard.weight) for shard in self.shards]
            maxima = [w.abs().max() if w.numel() else w.new_zeros(()) for w in weights]
            # All maxima in one tensor: a collective for each weight would cost its latency.
            largest, mesh = torch.stack(maxima), self.shards[0].weight.device_mesh
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=mesh.get_group(mesh.ndim - 1))
            for shard, scale in zip(self.shards, _scale(largest).unbind(), strict=True):
                shard.scale = scale
        return StepReport({}, {})


def _scale(largest: Tensor) -> Tensor:
    """Scale of a maximum, as torchao's `amax_to_scale`."""
    most = torch.finfo(torch.float8_e4m3fn).max
    return (most / largest.double().clamp(min=1e-12)).float()
