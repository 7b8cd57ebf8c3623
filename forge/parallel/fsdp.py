"""Fully sharded data parallelism (arXiv:2304.11277), by torch's fully_shard; one shard = DDP."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
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

from forge.adapters.adapter import Adapted
from forge.adapters.packed import packed_in
from forge.models.decoder import Decoder
from forge.models.experts import Experts
from forge.parallel.fsdp_private import groups_made_once, integers, keep_formats, param_group
from forge.parallel.mesh import Mesh
from forge.parallel.modules import blocks_of, mix_in
from forge.tensors.local import local

ENTRIES = ("equal", "with_weights")
"""Methods of experts, beside forward, that read weights."""


@integers()
@groups_made_once()
def shard(
    model: nn.Module,
    mesh: Mesh,
    *,
    param_dtype: torch.dtype | None = None,
    as_they_are: bool = False,
    reduce_dtype: torch.dtype = torch.float32,
    reshard_after_forward: bool | int = True,
    cpu_offload: bool = False,
) -> None:
    """Shard each block, the embedding, the output head and the root over the data ranks, in place.

    Gradients are summed and divided by nothing: the loss carries 1 / (target tokens of the step).
    reshard_after_forward: true frees weights after forward; a number, groups of so many adjacent
    ranks keep them; false, they stay to the end of the step's last backward pass. param_dtype: of
    gathered weights; nothing else is cast. as_they_are: take gradients in their own
    format; otherwise gradients are reduced in `reduce_dtype`, of gathered weights in 16 bits.
    """
    reduced = reduce_dtype if param_dtype is not None and not as_they_are else None
    common = policies(mesh, param_dtype, reduced, cpu_offload=cpu_offload)
    resident: dict[str, Any] = {**common, "mesh": mesh.fsdp, "reshard_after_forward": False}
    freed: dict[str, Any] = {**common, "reshard_after_forward": reshard_after_forward}
    rows = {id(values) for weight in packed_in(model) for values in weight.parameters().values()}
    of_block = partial(placement, ranks=mesh.parallel.fsdp, rows=rows)
    of_experts = partial(placement, ranks=mesh.parallel.efsdp, rows=rows)
    embedding = head = None
    if isinstance(model, Decoder) and not model.section.tie_embeddings:  # else with the root
        embedding, head = model.embedding, model.output
    groups: list[list[Any]] = []
    for block in blocks_of(model) if hasattr(model, "blocks") else ():
        groups.append([block, *shard_experts(block, mesh, of_experts, freed)])
        fully_shard(block, mesh=mesh.fsdp, shard_placement_fn=of_block, **freed)
    shard_memories(model, mesh, freed)
    if further := getattr(model, "mtp", None):
        groups += further_groups(further, mesh, of_block, of_experts, freed)
    if embedding is not None:
        sharded = fully_shard(embedding, mesh=mesh.fsdp, **freed)
        # The gradient of the table does not read the table; an adapter's gradient does.
        sharded.set_unshard_in_backward(isinstance(embedding, Adapted))
        groups.insert(0, [embedding])
    if head is not None:
        fully_shard(head, **resident)
        register_fsdp_forward_method(head, "receive")
        groups.append([head])
    fully_shard(model, **resident)
    if mesh.parallel.ep > 1:
        prefetch_in_order([[model], *groups])
    for method in ("hidden", "hidden_ahead")[: 2 if further else 1]:
        register_fsdp_forward_method(model, method)
    mix_in(model, ReshardsOnModeChange, keeps_gathered=reshard_after_forward is False)
    keep_formats(model)
    if mesh.fsdp.size() > 1:  # else no rank adds anything, and a factor would be one more copy
        sum_gradients(model)
        if mesh.parallel.symmetric_memory:
            use_symmetric_memory(model)


def shard_memories(model: Any, mesh: Mesh, freed: dict[str, Any]) -> None:
    """Shard each memory of n-grams for itself: its table is the largest tensor of the model."""
    for memory in getattr(model, "engrams", nn.ModuleDict()).values():
        fully_shard(memory, mesh=mesh.fsdp, **freed)


def shard_experts(
    block: nn.Module, mesh: Mesh, of_experts: Any, freed: dict[str, Any]
) -> list[Experts]:
    """Shard the experts of a block for themselves, under ep; return them."""
    if mesh.parallel.ep == 1:
        return []
    layers = [module for module in block.modules() if isinstance(module, Experts)]
    for layer in layers:
        fully_shard(layer, mesh=mesh.experts_fsdp, shard_placement_fn=of_experts, **freed)
        for method in ENTRIES:
            register_fsdp_forward_method(layer, method)
    return layers


def further_groups(
    modules: nn.ModuleDict, mesh: Mesh, of_block: Any, of_experts: Any, freed: dict[str, Any]
) -> list[list[Any]]:
    """Shard each module for a further token, and under ep its experts, as a block is sharded."""
    groups: list[list[Any]] = []
    for module in modules.values():
        groups.append([module, *shard_experts(module, mesh, of_experts, freed)])
        fully_shard(module, mesh=mesh.fsdp, shard_placement_fn=of_block, **freed)
    return groups


def policies(
    mesh: Mesh,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
    *,
    cpu_offload: bool,
) -> dict[str, Any]:
    """The formats and the storage of `shard`, as keywords of fully_shard."""
    # Inputs of modules are not cast: rotary tables are fp32, and hidden states as configured.
    precision = MixedPrecisionPolicy(param_dtype, reduce_dtype, cast_forward_inputs=False)
    pinned = mesh.axes.device_type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=pinned) if cpu_offload else OffloadPolicy()
    return {"mp_policy": precision, "offload_policy": offload}


def prefetch_in_order(groups: list[list[Any]]) -> None:
    """Have each group's weights gathered while the group before computes; backward, the reverse.

    groups: a sharded module and the sharded modules inside, in the order of forward. FSDP does so
    by itself only while the CPU runs ahead of the device, not where the CPU waits for counts of
    tokens.
    """
    for group, following in pairwise(groups):
        group[0].set_modules_to_forward_prefetch(following)
        following[0].set_modules_to_backward_prefetch(group)


def sum_gradients(model: nn.Module) -> None:
    """Have gradients summed over ranks and divided by nothing."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # of this module, not of those below it
            module.set_force_sum_reduction_for_comms(True)  # gloo has no premultiplied sum


def use_symmetric_memory(model: nn.Module) -> None:
    """Have FSDP's collectives run in NCCL's symmetric memory; after `sum_gradients`, since NCCL's
    reduce-scatter in it only sums.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_symm_mem_for_comm()


def placement(parameter: nn.Parameter, ranks: int, rows: Container[int] = ()) -> Shard | None:
    """The dimension along which a parameter is sharded; null = rows, as in torch.

    Packed experts, fewer than ranks, are cut across if possible: else some ranks would have none,
    and all would gather padding. rows: ids of parameters with whole rows on a rank.
    """
    local_values = local(parameter)
    if local_values.dim() != 3 or len(local_values) >= ranks:
        return None
    placements = parameter.placements if isinstance(parameter, DTensor) else ()
    cut = {p.dim for p in placements if isinstance(p, Shard)}
    across = (1,) if id(parameter) in rows else (1, 2)
    dims = [dim for dim in across if local_values.shape[dim] % ranks == 0]
    # A dimension not cut already comes first.
    return Shard(min(dims, key=lambda dim: dim in cut)) if dims else None


class ReshardsOnModeChange(nn.Module):
    """Mixin of a sharded model: frees weights still gathered, in train() and eval().

    Between updates the parameters are therefore the trained shards. keeps_gathered: between the
    micro-batches of a step, whose weights are the same, all weights stay gathered. held: inside of
    `held_gathered`.
    """

    keeps_gathered: bool
    held: bool = False

    def train(self, mode: bool = True) -> ReshardsOnModeChange:
        for module in () if self.held else self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return super().train(mode)


@contextmanager
def held_gathered(model: nn.Module) -> Iterator[None]:
    """Inside, train() and eval() free no weights: ranks that change the mode at other times than
    others still gather the same weights in the same passes.
    """
    parts = [part for part in model.modules() if isinstance(part, ReshardsOnModeChange)]
    for part in parts:
        part.held = True
    try:
        yield
    finally:
        for part in parts:
            part.held = False


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Inside, forward passes find all weights gathered, and ranks may make different numbers of
    them. A collective; without gradients.
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    # FSDP gives no way to ask what it does after forward: torch 2.11 to 2.13.
    groups = [group for module in modules if (group := param_group(module)) is not None]
    after_forward = [group.post_forward_mesh_info for group in groups]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for group, mesh_info in zip(groups, after_forward, strict=True):
            group.post_forward_mesh_info = mesh_info
        for module in modules:
            module.reshard()
