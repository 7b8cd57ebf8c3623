"""Fully sharded data parallelism (arXiv:2304.11277), by torch's fully_shard; one shard = DDP."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

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
from torch.distributed.tensor import DTensor, Shard

from forge.models.decoder import Decoder
from forge.models.experts import Experts
from forge.parallel.mesh import Mesh
from forge.parallel.modules import blocks_of, mix_in
from forge.parallel.owned import local


def shard(
    model: nn.Module,
    mesh: Mesh,
    *,
    param_dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
    cpu_offload: bool = False,
) -> None:
    """Shard each block, the embedding, the output head and the root over the data ranks, in place.

    Gradients are summed and divided by nothing: the loss carries 1 / (target tokens of the step).
    param_dtype: type that weights are gathered in; nothing else is cast, and gradients are reduced
    in fp32.
    """
    # What a module is given stays as it is: rotary tables are fp32, and hidden states what the
    # config says.
    policy = MixedPrecisionPolicy(
        param_dtype, torch.float32 if param_dtype is not None else None, cast_forward_inputs=False
    )
    offload = (
        CPUOffloadPolicy(pin_memory=mesh.axes.device_type == "cuda")
        if cpu_offload
        else OffloadPolicy()
    )
    common: dict[str, Any] = {"mp_policy": policy, "offload_policy": offload}
    again: dict[str, Any] = {**common, "reshard_after_forward": reshard_after_forward}
    embedding, head = _ends(model)
    groups = []
    for block in blocks_of(model):
        groups.append([block])
        if mesh.parallel.ep > 1:
            for layer in [module for module in block.modules() if isinstance(module, Experts)]:
                fully_shard(
                    layer,
                    mesh=mesh.experts_fsdp,
                    shard_placement_fn=partial(placement, ranks=mesh.experts["efsdp"].size()),
                    **again,
                )
                register_fsdp_forward_method(layer, "equal")
                groups[-1].append(layer)
        fully_shard(
            block,
            mesh=mesh.fsdp,
            shard_placement_fn=partial(placement, ranks=mesh.dense["fsdp"].size()),
            **again,
        )
    if embedding is not None:
        fully_shard(embedding, mesh=mesh.fsdp, **again).set_unshard_in_backward(
            False
        )  # its gradient does not need it
        groups.insert(0, [embedding])
    if head is not None:  # needed again at once, in backward
        fully_shard(head, mesh=mesh.fsdp, reshard_after_forward=False, **common)
        register_fsdp_forward_method(head, "receive")
        groups.append([head])
    fully_shard(model, mesh=mesh.fsdp, reshard_after_forward=False, **common)
    if mesh.parallel.ep > 1:
        _fetch_ahead([[model], *groups])
    register_fsdp_forward_method(model, "hidden")
    mix_in(model, LetsGo)
    alone = mesh.fsdp.size() == 1
    for module in model.modules():
        if (
            isinstance(module, FSDPModule) and not alone
        ):  # where no rank adds anything, a factor would be one more copy
            module.set_gradient_divide_factor(
                1.0
            )  # holds for one module each, not for those below it
            module.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum


def _ends(model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """The embedding and output head of a decoder, gathered when needed; a tied table stays with the
    root.
    """
    if not isinstance(model, Decoder) or model.section.tie_embeddings:
        return None, None
    return model.embedding, model.output


def placement(parameter: nn.Parameter, ranks: int) -> Shard | None:
    """The dimension along which a parameter is sharded; null = rows, as in torch.

    Packed experts, fewer than ranks, are cut across if possible: else some ranks would have none,
    and all would gather padding for them.
    """
    here = local(parameter)
    if here.dim() != 3 or len(here) >= ranks:
        return None
    cut = (
        {place.dim for place in parameter.placements if isinstance(place, Shard)}
        if isinstance(parameter, DTensor)
        else set()
    )
    return next(
        (
            Shard(dim)
            for dim in sorted((1, 2), key=lambda dim: dim in cut)
            if here.shape[dim] % ranks == 0
        ),
        None,
    )


def _fetch_ahead(groups: list[list[nn.Module]]) -> None:
    """While a group of modules computes, gather the weights of the next (in backward: previous)
    one.

    FSDP does so by itself only while the CPU runs ahead of the device, which it cannot where it
    waits for counts of tokens.
    """
    for group, following in pairwise(groups):
        group[0].set_modules_to_forward_prefetch(following)  # type: ignore[operator]
        following[0].set_modules_to_backward_prefetch(group)  # type: ignore[operator]


class LetsGo(nn.Module):
    """Mixin of a sharded model: it lets go of weights that it still holds gathered when reading
    begins and when it ends.

    So its parameters are those that are trained, whoever asks for them between updates.
    """

    def train(self, mode: bool = True) -> LetsGo:
        """As any module's."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return super().train(mode)


def reduce_in_backward(model: nn.Module, *, last: bool, each: bool) -> None:
    """Whether the next backward pass reduces gradients: `each` its own, else the last those of all.

    Unreduced, gradients of whole weights add up on each rank. With replicas those of each
    micro-batch are reduced over shards only, and over replicas in the last.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last or each)
        if each:
            model.set_requires_all_reduce(last)
        model.set_is_last_backward(last or each)
