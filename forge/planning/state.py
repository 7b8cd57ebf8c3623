"""Weights, gradients, fp32 masters and optimizer state of one rank: exact."""

from __future__ import annotations

import math
from functools import partial

from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import TensorSpec
from forge.config.optimizers import param_groups
from forge.config.precision import BYTES
from forge.config.root import Config
from forge.planning.shares import Share, Size, counted, largest, of_trained, share_of

STATE = ("weights", "gradients", "fp32 masters", "optimizer state", "mean of the weights")
"""Prefixes of the names of the parts."""


def state_of(config: Config, model: Decoder, share: Share, fsdp: bool) -> dict[str, int]:
    """Bytes by part, each in full. fsdp: whether FSDP holds the weights."""
    precision, parallel, adapter = config.precision, config.parallel, config.adapter
    weight, kind = BYTES[precision.param_dtype], precision.param_dtype
    gradient, stored = BYTES[precision.stored_gradients], precision.stored_gradients
    sharded = 0 if parallel.cpu_offload and fsdp else share.sharded(parallel)
    parts = {f"weights ({kind})": weight * sharded, f"gradients ({stored})": gradient * sharded}
    if precision.master_weights:
        parts["fp32 masters"] = FP32 * sharded
    parts |= _of_optimizer(config, model, share, sharded > 0)
    if adapter.packed_format and sharded:
        resident = partial(adapter.resident_bytes, width=weight)
        packed = counted(config, model, share, resident, adapter)
        parts[f"weights ({kind})"] = packed.sharded(parallel)
    return parts


def _of_optimizer(config: Config, model: Decoder, share: Share, here: bool) -> dict[str, int]:
    """Bytes of gradients, fp32 masters and optimizer state of trained parameters, by part.

    here: whether the parts are on the device.
    """
    name_to_group, optimizer = param_groups.groups(config), config.optimizer
    is_trained = param_groups.trained(config)
    some_frozen = param_groups.some_frozen(config)

    def kept(one: TensorSpec, shape: tuple[int, ...]) -> float:
        name = param_groups.group_name(optimizer, one.name, one.role)
        state_bytes = name_to_group[name].section.state_bytes(shape) if is_trained(one.name) else 0
        return math.nan if state_bytes is None else state_bytes

    parts = _mean_of_weights(config, model, share, here)
    precision, parallel = config.precision, config.parallel
    gradient, shards = BYTES[precision.stored_gradients], max(parallel.fsdp, 1)
    if config.train.optimizer_in_backward and here:  # gradients of a block, a table or the head
        at_once = max(share.two_blocks // 2, share.outside_at_once)
        parts[f"gradients ({precision.stored_gradients})"] = gradient * -(-at_once // shards)
    if some_frozen:
        trained_share = of_trained(config, model, share)
        count, kind = trained_share.sharded(parallel) * here, precision.stored_gradients
        if f"gradients ({kind})" not in parts:
            parts[f"gradients ({kind})"] = gradient * count
        if precision.master_weights:
            parts["fp32 masters"] = FP32 * count
    by_name = optimizer.groups or some_frozen
    ends = {"first": share.first, "last": share.last}
    state = share_of(model, parallel, config.adapter, of=kept, named=bool(by_name), **ends)
    if state.known:
        parts["optimizer state"] = state.sharded(parallel) * here
    if parallel.offload_optimizer and not parallel.cpu_offload:
        # State of the parameter being updated, and state in transfer to or from the host.
        of_largest = _largest_state(config, model, share, kept)
        parts["optimizer state"] = 2 * -(-round(of_largest) // shards)
        parts.pop("fp32 masters", None)
        if precision.master_weights:
            parts["fp32 masters"] = 0
    return parts


def _mean_of_weights(config: Config, model: Decoder, share: Share, here: bool) -> dict[str, int]:
    """Bytes of the fp32 moving mean of the trained weights, where train.ema_decay has one; and of
    the common weights and the velocity of diloco.
    """
    diloco = config.diloco
    if not (config.train.ema_decay or diloco.enabled):
        return {}
    frozen = param_groups.some_frozen(config)
    averaged = of_trained(config, model, share) if frozen else share
    size = FP32 * averaged.sharded(config.parallel) * here
    if diloco.enabled:
        return {"outer weights and velocity": size * (2 if diloco.outer_momentum else 1)}
    return {"mean of the weights": size}


def _largest_state(config: Config, model: Decoder, share: Share, state_bytes: Size) -> float:
    """Bytes of the largest state of one parameter, fp32 master included."""
    of_master = FP32 * bool(config.precision.master_weights)

    def with_master(tensor: TensorSpec, shape: tuple[int, ...]) -> float:
        return state_bytes(tensor, shape) + of_master * math.prod(shape)

    return largest(config, model, share, with_master)
