"""Fully sharded data parallelism (arXiv:2304.11277), by torch's fully_shard; with one shard it replicates, as DDP does."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from forge.parallel.blocks import blocks_of
from forge.parallel.mesh import Mesh
from forge.parallel.mixin import mix_in


def shard(
    model: nn.Module,
    mesh: Mesh,
    *,
    param_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
    cpu_offload: bool = False,
) -> None:
    """Shard each block, and all else with the root, over the data ranks, in place.

    Gradients are reduced by SUM and divided by nothing: the loss carries 1 / (target tokens of the step), and that is all.
    param_dtype: what a block's matrices are gathered and multiplied in; gradients are reduced in fp32.
    """
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32 if param_dtype is not None else None)
    offload = CPUOffloadPolicy(pin_memory=mesh.axes.device_type == "cuda") if cpu_offload else OffloadPolicy()
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh.fsdp, mp_policy=policy, offload_policy=offload, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh.fsdp, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden")
    mix_in(model, LetsGo)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # holds for one module each, not for those below it
            module.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum


class LetsGo(nn.Module):
    """Mixin of a sharded model: it lets go of weights that it still holds gathered when reading begins and when it ends.

    So its parameters are those that are trained, whoever asks for them between updates.
    """

    def train(self, mode: bool = True) -> LetsGo:
        """As any module's."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return super().train(mode)


def last_micro_batch(model: nn.Module, last: bool) -> None:
    """Reduce gradients only in the backward of a step's last micro-batch; before it they add up unreduced."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.set_is_last_backward(last)
