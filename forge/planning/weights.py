"""Bytes that data parallelism sends: gathered weights, reduced gradients, sums over replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, HEAD, TensorSpec, within
from forge.config.optimizers.param_groups import some_frozen, trained
from forge.config.precision import BYTES
from forge.config.root import Config
from forge.planning.shapes import elements

GATHER = "fsdp: all-gather of weights"
DP, FSDP, EFSDP = ("dp_replicate",), ("dp_shard", "cp", "ep"), ("dp_shard", "cp")
Counted = tuple[str, int, tuple[str, ...], float]
"""Name of a collective, bytes sent by a rank in a step, axes of the group, and calls."""
Tensors = Iterable[tuple[int, TensorSpec]]
"""Parameters, each with its number of blocks."""


@dataclass(frozen=True, kw_only=True)
class WeightTraffic:
    """Collectives of FSDP and of replicas, by stage of a pipeline.

    width: bytes of a number in products. reductions: of gradients in a step.
    """

    config: Config
    model: Decoder
    width: int
    reductions: int

    @cached_property
    def some_frozen(self) -> bool:
        """Whether some weights may be frozen, so that names of tensors matter."""
        return some_frozen(self.config)

    @cached_property
    def is_trained(self) -> Callable[[str], bool]:
        """Predicate of trained weights by name."""
        return trained(self.config) if self.some_frozen else lambda _: True

    def of_stage(self, layers: range, outside: Sequence[TensorSpec]) -> Iterator[Counted]:
        """Yield the collectives of a stage. outside: its parameters outside of blocks.

        Experts, cut over ep ranks, are sharded over fewer ranks, and are FSDP groups apart.
        """
        p, kinds = self.config.parallel, self.model.kinds_in(layers)
        blocks = self.blocks(layers)
        experts = [(number, tensor) for number, tensor in blocks if tensor.of_experts]
        dense = [(number, tensor) for number, tensor in blocks if not tensor.of_experts]
        mixtures = sum(number for kind, number in kinds.items() if kind.moe) if p.ep > 1 else 0
        ends = [(1, tensor) for tensor in outside]
        yield from self._of_shards(FSDP, dense, ends, kinds.total())
        yield from self._of_shards(EFSDP, experts, [], mixtures)
        yield from self._of_scales([*dense, *ends])

    def blocks(self, layers: range) -> list[tuple[int, TensorSpec]]:
        """Parameters of blocks, each with its number of blocks."""
        return [(number, tensor) for number, tensors in self.by_block(layers) for tensor in tensors]

    def by_block(self, layers: range) -> Iterator[tuple[int, list[TensorSpec]]]:
        """Yield the parameters of a block, those of adapters too, with the number of such blocks;
        by full name, each block by itself, where names matter.
        """
        model = self.model
        if not (self.config.quantization.gathers_in_fp8 or self.some_frozen):
            for kind, number in model.kinds_in(layers).items():
                yield number, list(model.block_tensors(kind))
            return
        for layer in layers:
            tensors = model.block_tensors(model.kind_of(layer))
            named = list(within(f"blocks.{layer}", tensors))
            yield 1, [*named, *self.config.adapter.added(named)]

    def _of_shards(
        self, axes: tuple[str, ...], blocks: Tensors, ends: Tensors, groups: int
    ) -> Iterator[Counted]:
        """Yield gathers of weights for each forward pass and, unless weights stay gathered, of
        blocks again for backward; and reductions of the gradients of trained weights. groups: of
        FSDP, in blocks.

        A pipeline keeps gathered weights for the step.
        """
        p, ranks = self.config.parallel, prod(getattr(self.config.parallel, axis) for axis in axes)
        once = p.pp > 1 or p.reshard_after_forward == "never"
        readings = 1 if once else self.config.train.grad_accum_steps
        (block, block_bytes), (end, end_bytes) = (self._sizes(t, ranks) for t in (blocks, ends))
        calls = groups + self.outer_groups(tensor for _, tensor in ends)

        def share(size: int, of: int) -> int:
            return size * (of - 1) // of

        sent = share(readings * (block_bytes + end_bytes), ranks)
        yield GATHER, sent, axes, readings * calls
        second = min(p.regathering_ranks, ranks)  # 1 sends nothing
        sent = share(readings * block_bytes, second)
        yield GATHER, sent, axes, readings * groups * (second > 1)
        reduced = 2 if self.config.precision.reduces_in_bf16 else FP32
        sent = share(reduced * self.reductions * (block + end), ranks)
        groups = groups if block else 0
        calls = groups + self.outer_groups(t for _, t in ends if self.is_trained(t.name))
        yield "fsdp: reduce-scatter of gradients", sent, axes, self.reductions * calls
        replicas, shard = p.dp_replicate, (block + end) // ranks
        diloco = self.config.diloco
        if diloco.enabled:
            joined = share(2 * FP32 * shard // diloco.sync_period, replicas)
            joins = diloco.fragments / diloco.sync_period if shard else 0
            yield "diloco: all-reduce of weights", joined, DP, joins
        else:
            joined = share(2 * reduced * shard, replicas)
            yield "hsdp: all-reduce of gradients", joined, DP, calls

    def _of_scales(self, tensors: Tensors) -> Iterator[Counted]:
        """Yield the all-reduce of an update that finds the scales of weights gathered in fp8."""
        quantization, ranks = self.config.quantization, self.config.parallel.fsdp
        if quantization.gathers_in_fp8:
            number = sum(
                n for n, tensor in tensors if quantization.gathered_in_fp8(tensor, self.model)
            )
            size = 2 * BYTES[self.config.precision.param_dtype] * number
            sent = size * (ranks - 1) // ranks
            yield "fsdp: all-reduce of scales", sent, FSDP, number > 0

    def _sizes(self, tensors: Tensors, ranks: int) -> tuple[int, int]:
        """Elements that `ranks` shard and train, and bytes of all gathered."""
        p, adapter, quantization = (
            self.config.parallel,
            self.config.adapter,
            self.config.quantization,
        )
        count = size = 0
        for number, tensor in tensors:
            of_tensor = number * elements(tensor, tp=p.tp, ep=p.ep, shards=ranks)
            count += of_tensor if self.is_trained(tensor.name) else 0
            if adapter.packs(tensor):
                columns = tensor.on_rank(p.tp, p.ep)[-1]
                shape = (of_tensor // columns, columns)
                size += adapter.resident_bytes(tensor, shape, width=self.width)
            else:
                size += quantization.gathered_bytes(
                    tensor, (of_tensor,), model=self.model, width=self.width
                )
        return count, size

    def outer_groups(self, outside: Iterable[TensorSpec]) -> int:
        """Number of FSDP groups outside blocks: the embedding, the head, and the rest, unless the
        head shares the embedding's table.
        """
        if self.model.tie_embeddings:
            return int(any(True for _ in outside))
        return len({tensor.role if tensor.role in (EMBEDDING, HEAD) else "" for tensor in outside})
