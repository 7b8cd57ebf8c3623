"""One rank's share of a model before FSDP shards it: counts of parameters, or of their bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

from forge.config.adapters.adapter import Adapter, NoAdapter
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import TensorSpec, within
from forge.config.optimizers import param_groups
from forge.config.parallel import Parallel
from forge.config.root import Config

NO_ADAPTER = NoAdapter()
OF_EXPERTS = attrgetter("of_experts")
Size = Callable[[TensorSpec, tuple[int, ...]], float]
"""Bytes or values of a tensor, by its shape on a rank."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Layers, ends and counts of parameters of a rank.

    experts: sharded over efsdp. in_blocks, outside: all others, sharded over fsdp. two_blocks: the
    largest sum of two adjacent blocks; block: the largest block. outside_at_once: gathered at a
    time: the embedding is freed before the output head is needed. packed: shape of a layer's
    experts, [experts, width, dim].
    """

    layers: range
    first: bool
    last: bool
    experts: int
    in_blocks: int
    outside: int
    outside_at_once: int
    two_blocks: int
    block: int
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


def with_adapter(adapter: Adapter, tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Parameters of a model, and the adapter's parameters beside."""
    parameters = list(tensors)
    return [*parameters, *adapter.added(parameters)]


def share_of(
    model: Decoder,
    parallel: Parallel,
    adapter: Adapter = NO_ADAPTER,
    *,
    first: bool,
    last: bool,
    of: Size | None = None,
    named: bool = True,
) -> Share:
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
            (1, with_adapter(adapter, within(f"blocks.{layer}", blocks[kind])))
            for layer, kind in zip(layers, kinds, strict=True)
        ]
        of_layers = [size(tensors) for _, tensors in counted]
    experts = sum(number * size(filter(OF_EXPERTS, tensors)) for number, tensors in counted)
    outside, outside_at_once = _outside(model, adapter, size, first=first, last=last)
    packed = next(filter(OF_EXPERTS, chain.from_iterable(blocks.values())), None)
    return Share(
        layers=layers,
        first=first,
        last=last,
        experts=experts,
        in_blocks=sum(number * size(tensors) for number, tensors in counted) - experts,
        outside=outside,
        outside_at_once=outside_at_once,
        two_blocks=max(map(sum, pairwise(of_layers)), default=of_layers[0]),
        block=max(of_layers),
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
    tables, outputs = (with_adapter(adapter, tensors) for tensors in model.outside())
    embedding, has_head = size(tables[:1]), last and not (first and model.tie_embeddings)
    outside = (size(tables) if first else 0) + (size(outputs) if last else 0)
    if has_head and model.tie_embeddings:
        outside += embedding
    return outside, outside - (embedding if first and has_head else 0)


def of_trained(config: Config, model: Decoder, share: Share) -> Share:
    """The share of a rank in trained values alone."""
    is_trained = param_groups.trained(config)

    def size(one: TensorSpec, shape: tuple[int, ...]) -> int:
        return math.prod(shape) if is_trained(one.name) else 0

    return counted(config, model, share, size, config.adapter)


def counted(
    config: Config, model: Decoder, share: Share, size: Size, adapter: Adapter = NO_ADAPTER
) -> Share:
    """The share of a rank in the sizes of tensors."""
    ends = {"first": share.first, "last": share.last}
    return share_of(model, config.parallel, adapter, of=size, **ends)


def largest(config: Config, model: Decoder, share: Share, size: Size) -> float:
    """The largest size of a tensor of the rank."""
    most = 0.0

    def compared(tensor: TensorSpec, shape: tuple[int, ...]) -> float:
        nonlocal most
        most = max(most, size(tensor, shape))
        return 0

    counted(config, model, share, compared, config.adapter)
    return most
