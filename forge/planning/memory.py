"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from forge.config.adapters.adapter import Adapter, NoAdapter
from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import TensorSpec, within
from forge.config.optimizers import param_groups
from forge.config.parallel import V_SCHEDULE, Parallel
from forge.config.precision import BYTES
from forge.config.root import Config
from forge.planning.activations import Activations, Stage
from forge.rundir.saved_config import load_config, newest

STATE = ("weights", "gradients", "fp32 masters", "optimizer state")
"""Prefixes of the names of exact parts, held throughout a run."""
NO_ADAPTER = NoAdapter()
OF_EXPERTS = attrgetter("of_experts")
Size = Callable[[TensorSpec, tuple[int, ...]], float]
"""Bytes or values of a tensor, by its shape on a rank."""


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of the device with the largest need, by part; empty for a model of unknown layers.

    On one device weights, gradients and optimizer state are exact. Activations are the tensors
    autograd holds after the forward pass of uncompiled blocks with fused attention (as
    arXiv:2205.05198, section 4); logits are the peak inside the loss. The sum is an upper bound.

    On several devices, tp, pp and ep cut the weights; FSDP shards the rest and gathers block by
    block, or all weights under a pipeline; cp and sequence parallelism cut the tokens. Assumes
    equal numbers of tokens for experts, and of blocks for stages.
    """
    model, parallel = config.decoder, config.parallel
    if model is None:
        return {}
    # the rank of largest need is at an end of the pipeline
    adapter = config.adapter
    shares = [_share(model, parallel, adapter, first=True, last=True)]
    if parallel.pp > 1:
        is_last = parallel.pp_schedule == V_SCHEDULE
        shares = [_share(model, parallel, adapter, first=True, last=is_last)]
        shares.append(_share(model, parallel, adapter, first=False, last=True))
    ranks = [_of_rank(config, model, share) for share in shares]
    return max(ranks, key=lambda parts: sum(parts.values()))


def _of_rank(config: Config, model: Decoder, share: _Share) -> dict[str, int]:
    parallel, precision = config.parallel, config.precision
    width, weight = BYTES[precision.mixed_precision], BYTES[precision.param_dtype]
    several = parallel.fsdp * parallel.dp_replicate * parallel.tp * parallel.pp > 1
    gathered = several or config.one_rank_has_fsdp
    sharded = 0 if parallel.cpu_offload and gathered else share.sharded(parallel)
    kind = precision.param_dtype
    parts = {f"weights ({kind})": weight * sharded, f"gradients ({kind})": weight * sharded}
    if precision.master_weights:
        parts["fp32 masters"] = FP32 * sharded
    parts |= _of_optimizer(config, model, share, sharded > 0)
    adapter, quantization = config.adapter, config.quantization
    if adapter.packed_format:
        if sharded:
            resident = partial(adapter.resident_bytes, width=weight)
            packed = _counted(config, model, share, resident, adapter)
            parts[f"weights ({kind})"] = packed.sharded(parallel)
        unpacked = partial(adapter.unpacked_bytes, width=width)
        parts["weights made again"] = round(_largest(config, model, share, unpacked))
    activations = Activations(config, model)
    several_passes = max(config.train.grad_accum_steps, activations.microbatches) > 1
    if gathered:
        parts["gathered weights"] = _of_gathered(config, model, share, width)
    in_fp32 = precision.weights_in_16_bits and parallel.reduce_gradients == "step"
    if gathered or (several_passes and in_fp32):  # else gradients are added up where they are
        parts |= _of_unreduced(config, model, share, several, several_passes)
    if quantization.zeroes:
        beside = partial(quantization.zeroed_bytes, model=model, width=weight)
        zeroed = _counted(config, model, share, beside)
        parts["zeroed weights, masks"] = zeroed.sharded(parallel)
    for frozen in _frozen_models(config):
        whole = _share(frozen, parallel, first=True, last=True)
        of_model = width * whole.at_once * gathered + FP32 * whole.sharded(parallel)
        parts["frozen models"] = parts.get("frozen models", 0) + of_model
    stage = Stage(layers=share.layers, first=share.first, last=share.last)
    held = activations.held(stage)
    if held is not None:
        parts["activations"] = round(held.device)
        if config.data.pack_sequences:
            parts["masks of documents"] = activations.of_documents(stage)
    if share.last:
        vocab = -(-model.vocab_size // (parallel.tp if parallel.loss_parallel else 1))
        sizes = {"tokens": activations.tokens, "vocab": vocab, "dim": model.dim, "width": width}
        capped = model.final_logits_soft_cap > 0
        parts["logits"] = config.objective.logits_bytes(**sizes, capped=capped)
    return parts


def _of_gathered(config: Config, model: Decoder, share: _Share, width: int) -> int:
    """Bytes of the weights FSDP has gathered at a time: two blocks, or all that stay."""
    parallel, adapter, quantization = config.parallel, config.adapter, config.quantization
    factor = 1
    if quantization.gathers_in_fp8:
        fp8 = partial(quantization.gathered_bytes, model=model, width=width)
        share = _counted(config, model, share, fp8)
    elif adapter.packed_format:
        resident = partial(adapter.resident_bytes, width=width)
        share = _counted(config, model, share, resident, adapter)
    else:
        factor = width
    stays = parallel.pp > 1 or parallel.reshard_after_forward == "never"
    return factor * (share.parameters if stays else share.at_once)


def _of_unreduced(
    config: Config, model: Decoder, share: _Share, several: bool, several_passes: bool
) -> dict[str, int]:
    """Bytes of gradients before FSDP reduces them: of two blocks, or of all where passes add up.

    several: ranks. several_passes: in a step.
    """
    parallel, precision = config.parallel, config.precision
    # On one rank gradients may keep the format backward gives: `forge.parallel.apply`.
    same_dtype = precision.param_dtype == precision.mixed_precision
    unchanged = same_dtype and not (several or several_passes)
    kind = precision.param_dtype if unchanged else "fp32"
    add_up = several_passes and (parallel.pp > 1 or parallel.reduce_gradients == "step")
    if param_groups.some_frozen(config):
        share = _of_trained(config, model, share)
    count = share.parameters if add_up else share.at_once
    return {f"unreduced gradients ({kind})": BYTES[kind] * count}


def _of_optimizer(config: Config, model: Decoder, share: _Share, here: bool) -> dict[str, int]:
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

    parts = {}
    precision, parallel = config.precision, config.parallel
    weight, shards = BYTES[precision.param_dtype], max(parallel.fsdp, 1)
    if config.train.optimizer_in_backward and here:  # gradients of a block, a table or the head
        at_once = max(share.two_blocks // 2, share.outside_at_once)
        parts[f"gradients ({precision.param_dtype})"] = weight * -(-at_once // shards)
    if some_frozen:
        trained_share = _of_trained(config, model, share)
        count, kind = trained_share.sharded(parallel) * here, precision.param_dtype
        if f"gradients ({kind})" not in parts:
            parts[f"gradients ({kind})"] = weight * count
        if precision.master_weights:
            parts["fp32 masters"] = FP32 * count
    by_name = optimizer.groups or some_frozen
    ends = {"first": share.first, "last": share.last}
    state = _share(model, parallel, config.adapter, of=kept, named=bool(by_name), **ends)
    if state.known:
        parts["optimizer state"] = state.sharded(parallel) * here
    if parallel.offload_optimizer and not parallel.cpu_offload:
        # State of the parameter being updated, and state in transfer to or from the host.
        largest = _largest_state(config, model, share, kept)
        parts["optimizer state"] = 2 * -(-round(largest) // shards)
        parts.pop("fp32 masters", None)
        if precision.master_weights:
            parts["fp32 masters"] = 0
    return parts


def _largest_state(config: Config, model: Decoder, share: _Share, state_bytes: Size) -> float:
    """Bytes of the largest state of one parameter, fp32 master included."""
    of_master = FP32 * bool(config.precision.master_weights)

    def with_master(tensor: TensorSpec, shape: tuple[int, ...]) -> float:
        return state_bytes(tensor, shape) + of_master * math.prod(shape)

    return _largest(config, model, share, with_master)


def _of_trained(config: Config, model: Decoder, share: _Share) -> _Share:
    """The share of a rank in trained values alone."""
    is_trained = param_groups.trained(config)

    def size(one: TensorSpec, shape: tuple[int, ...]) -> int:
        return math.prod(shape) if is_trained(one.name) else 0

    return _counted(config, model, share, size, config.adapter)


def _counted(
    config: Config, model: Decoder, share: _Share, size: Size, adapter: Adapter = NO_ADAPTER
) -> _Share:
    """The share of a rank in the sizes of tensors."""
    ends = {"first": share.first, "last": share.last}
    return _share(model, config.parallel, adapter, of=size, **ends)


def _largest(config: Config, model: Decoder, share: _Share, size: Size) -> float:
    """The largest size of a tensor of the rank."""
    largest = 0.0

    def compared(tensor: TensorSpec, shape: tuple[int, ...]) -> float:
        nonlocal largest
        largest = max(largest, size(tensor, shape))
        return 0

    _counted(config, model, share, compared, config.adapter)
    return largest


def _frozen_models(config: Config) -> Iterator[Decoder]:
    """Yield the frozen models of the objective; the trained model stands in for unreadable ones."""
    for source in config.objective.frozen_models().values():
        model = config.decoder
        with suppress(OSError, ValueError, TypeError, KeyError):  # its build reports the fault
            if source and Path(source).is_dir():
                model = load_config(newest(Path(source)), trust=config.run.trust).decoder
        yield from [model] if model is not None else []


@dataclass(frozen=True, kw_only=True)
class _Share:
    """One rank's share of a model before FSDP shards it: layers, ends and counts of parameters.

    experts: sharded over efsdp. in_blocks, outside: all others, sharded over fsdp. two_blocks: the
    largest sum of two adjacent blocks. outside_at_once: gathered at a time: the embedding is freed
    before the output head is needed. packed: shape of a layer's experts, [experts, width, dim].
    """

    layers: range
    first: bool
    last: bool
    experts: int
    in_blocks: int
    outside: int
    outside_at_once: int
    two_blocks: int
    packed: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return self.experts + self.in_blocks + self.outside

    @property
    def at_once(self) -> int:
        """Gathered at a time: a block, the next one on its way, and one end of the model."""
        return self.outside_at_once + self.two_blocks

    @property
    def known(self) -> bool:
        """Whether the count is known for every tensor."""
        return not math.isnan(self.parameters)

    def sharded(self, parallel: Parallel) -> int:
        """The largest FSDP shard: whole experts, or a part of each if fewer than shards."""
        fsdp, efsdp, (count, *widths) = max(parallel.fsdp, 1), max(parallel.efsdp, 1), self.packed
        if count < efsdp and any(length % efsdp == 0 for length in widths):
            experts = -(-self.experts // efsdp)
        else:
            experts = self.experts * -(-count // efsdp) // max(count, 1)
        return -(-(self.in_blocks + self.outside) // fsdp) + experts


def _with(adapter: Adapter, tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Parameters of a model, and the adapter's parameters beside."""
    parameters = list(tensors)
    return [*parameters, *adapter.added(parameters)]


def _share(
    model: Decoder,
    parallel: Parallel,
    adapter: Adapter = NO_ADAPTER,
    *,
    first: bool,
    last: bool,
    of: Size | None = None,
    named: bool = True,
) -> _Share:
    """Count a rank's share of a model.

    of: count for a tensor, by name and shape on this rank; None = values. named: whether `of`
    depends on names, not roles alone.
    """

    def size(tensors: Iterable[TensorSpec]) -> Any:
        shapes = ((tensor, tensor.on_rank(parallel.tp, parallel.ep)) for tensor in tensors)
        return sum(of(tensor, shape) if of else math.prod(shape) for tensor, shape in shapes)

    per_rank = -(-model.n_layers // parallel.pp)
    start = 0 if first else model.n_layers - per_rank
    layers = range(start, start + per_rank)
    kinds = [model.kind_of(layer) for layer in layers]
    number_of = Counter(kinds)
    blocks = {kind: model.block_tensors(kind) for kind in number_of}
    counted = [(number, blocks[kind]) for kind, number in number_of.items()]
    sizes = {kind: size(tensors) for kind, tensors in blocks.items()}
    of_layers = [sizes[kind] for kind in kinds]
    if (of and named) or adapter.active:  # by name: each block has its own
        counted = [
            (1, _with(adapter, within(f"blocks.{layer}", blocks[kind])))
            for layer, kind in zip(layers, kinds, strict=True)
        ]
        of_layers = [size(tensors) for _, tensors in counted]
    experts = sum(number * size(filter(OF_EXPERTS, tensors)) for number, tensors in counted)
    outside, outside_at_once = _outside(model, adapter, size, first=first, last=last)
    packed = next(filter(OF_EXPERTS, chain.from_iterable(blocks.values())), None)
    return _Share(
        layers=layers,
        first=first,
        last=last,
        experts=experts,
        in_blocks=sum(number * size(tensors) for number, tensors in counted) - experts,
        outside=outside,
        outside_at_once=outside_at_once,
        two_blocks=max(map(sum, pairwise(of_layers)), default=of_layers[0]),
        packed=packed.on_rank(parallel.tp, parallel.ep) if packed else (0, 0, 0),
    )


def _outside(
    model: Decoder,
    adapter: Adapter,
    size: Callable[[Iterable[TensorSpec]], Any],
    *,
    first: bool,
    last: bool,
) -> tuple[Any, Any]:
    """Count the values outside of blocks on a stage: all, and the most gathered at a time."""
    tables, outputs = (_with(adapter, tensors) for tensors in model.outside())
    embedding, has_head = size(tables[:1]), last and not (first and model.tie_embeddings)
    outside = (size(tables) if first else 0) + (size(outputs) if last else 0)
    if has_head and model.tie_embeddings:
        outside += embedding
    return outside, outside - (embedding if first and has_head else 0)
