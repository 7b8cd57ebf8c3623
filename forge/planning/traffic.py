"""Bytes sent by one rank in one optimizer step, by technique, collective and group; from the config
alone, without torch.

Counted as in a ring: in an all-gather or a reduce-scatter of S bytes over n ranks each rank sends
S * (n - 1) / n, in an all-reduce (one of each) 2 * S * (n - 1) / n, in an all-to-all (n - 1) / n of
its bytes, in a message between two ranks all bytes. Other algorithms (trees, or switches that add
up) send less, and no bandwidth-bound algorithm sends more. Experts get equal numbers of tokens,
true for a balanced router; a rank with all tokens for one other rank sends n / (n - 1) as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from forge.config.model.decoder import Decoder, Kind
from forge.config.model.tensors import EMBEDDING, TensorSpec
from forge.config.root import Config
from forge.planning.activations import rows_of_room
from forge.planning.context import ContextTraffic
from forge.planning.exchange import gathered_bytes, gathers
from forge.planning.layout import rows_of_rank
from forge.planning.scales import scales_agreed
from forge.planning.shapes import added_up, elements, outside_blocks
from forge.planning.stages import blocks_by_stage, owner, stages_of
from forge.planning.weights import DP, FSDP, WeightTraffic

FP32, FP64, INT64 = 4, 8, 8
REPORTED = 8
"""Numbers reported by a layer of experts in a step, beside each load: `forge.models.balance`."""

TP, CP, EP, PP = ("tp",), ("cp",), ("ep",), ("pp",)
DATA = (*DP, *FSDP)


@dataclass
class Sent:
    """Traffic of one rank by one kind of collective over one group of ranks.

    axes: of the group. bytes: sent in a step. calls: collectives started in a step.
    """

    name: str
    axes: tuple[str, ...]
    bytes: int = 0
    calls: float = 0.0

    @property
    def technique(self) -> str:
        return self.name.partition(":")[0]

    @property
    def kind(self) -> str:
        """The collective: all-gather, reduce-scatter, all-reduce, all-to-all or send."""
        kinds = {"pp": "send", "all": "all-reduce"}
        return kinds.get(self.technique) or self.name.partition(": ")[2].partition(" ")[0]


def bytes_per_step(config: Config) -> dict[str, int]:
    """Bytes sent by the busiest rank in one update, by 'technique: collective', for a resolved
    config. Empty for unknown models.

    Left out: the first step's set-up, evaluation, checkpoints, and votes of a few bytes to stop.
    """
    counts: Counter[str] = Counter()
    for sent in busiest_rank(config):
        counts[sent.name] += sent.bytes
    return dict(counts)


def busiest_rank(config: Config) -> list[Sent]:
    """Traffic of the busiest rank, by collective and group."""
    model = config.decoder
    if model is None:
        return []
    ranks = [Rank(config, model, rank).sent() for rank in range(config.parallel.pp)]
    return max(ranks, key=lambda sent: sum(collective.bytes for collective in sent))


class Rank:
    """Traffic of one rank of the pipeline, the first of its tp ranks; ranks along every other axis
    send the same.
    """

    def __init__(self, config: Config, model: Decoder, rank: int) -> None:
        self.config, self.model, self.p = config, model, config.parallel
        p = self.p
        per_rank = p.pp_stages_per_rank or 1
        self.last_stage = p.pp * per_rank - 1
        self.stages = stages_of(rank, p.pp, per_rank, p.pp_schedule)
        starts = [0, *accumulate(blocks_by_stage(config, model))]
        self.layers = {stage: range(starts[stage], starts[stage + 1]) for stage in self.stages}
        self.blocks = sum(map(len, self.layers.values()))
        self.sequences = rows_of_rank(config)
        self.tokens = self.sequences * config.train.seq_len // p.cp
        self.passes = (p.pp_microbatches or 1) if p.pp > 1 else config.train.grad_accum_steps
        self.width = FP32 if config.precision.mixed_precision == "fp32" else 2
        self.residual = FP32 if config.precision.residual_dtype == "fp32" else 2
        self.reductions = (
            config.train.grad_accum_steps if p.reduce_gradients == "micro_batch" else 1
        )
        self.weights = WeightTraffic(
            config=config, model=model, width=self.width, reductions=self.reductions
        )
        self.cut = p.sequence_parallel and p.tp > 1
        # as in forge.parallel.activation_checkpoint
        self.selective = config.train.policy.name == "selective"
        self.layers_apart = config.train.policy.by_name and p.ep > 1
        self.total: dict[tuple[str, tuple[str, ...]], Sent] = {}

    def sent(self) -> list[Sent]:
        """Traffic by collective and group; without groups of one rank."""
        self.of_data_parallel()
        self.of_width()
        self.of_context()
        self.of_experts()
        self.of_pipeline()
        self.of_numbers()
        return [collective for collective in self.total.values() if collective.bytes]

    def of_data_parallel(self) -> None:
        """Count FSDP and replicas."""
        for stage in self.stages:
            for counted in self.weights.of_stage(self.layers[stage], self.others(stage)):
                self.add(*counted)

    def of_width(self) -> None:
        """Count TP: hidden states into and out of attention and feed-forward, forward and backward,
        and in recomputation.

        Recomputation repeats both ways in, but not the way into experts with layers recomputed
        apart. Recomputation repeats the first way out, unless its result, out_proj, is kept, and
        never the second: nothing in the block reads the result. Without trained tables backward
        ends in the first block: nothing goes on to them.
        """
        hidden, recomputed = self.tokens * self.model.dim * self.width, len(self.recomputed())
        in_again = 2 * recomputed - (self.mixtures(self.recomputed()) if self.layers_apart else 0)
        out_again = 0 if self.layers_apart else len(self.recomputed(without="out_proj"))
        first, last = 0 in self.stages, self.last_stage in self.stages
        tables = self.model.outside()[0]
        ends_early = first and not any(self.weights.is_trained(table.name) for table in tables)
        ends = first + last - ends_early
        if self.cut:
            for name, number in (("all-gather", in_again), ("reduce-scatter", out_again)):
                number += 4 * self.blocks + ends
                calls = self.passes * number
                self.ring(f"tp: {name} of hidden states", hidden * number, TP, calls)
        else:
            number = 4 * self.blocks + out_again + ends
            calls = self.passes * number
            self.ring("tp: all-reduce of hidden states", 2 * hidden * number, TP, calls)
        self.of_shared_gradients()
        blocks = [block for blocks in self.layers.values() for block in blocks]
        counts = {"tokens": self.tokens, "passes": self.passes}
        numbers, calls = scales_agreed(self.config, self.model, blocks, **counts)
        self.ring("tp: all-reduce of scales", 2 * self.width * numbers, TP, calls)
        if last:
            self.of_loss()

    def of_shared_gradients(self) -> None:
        """Count TP: gradients of parameters on all ranks, each summed by itself."""
        is_trained = self.weights.is_trained
        sizes = [
            (number, size)
            for stage in self.stages
            for number, tensors in [
                (1, self.others(stage)),
                *self.weights.by_block(self.layers[stage]),
            ]
            for size in added_up(
                [tensor for tensor in tensors if is_trained(tensor.name)],
                self.p.tp,
                parts=self.cut,
            )
        ]
        shared = sum(number * size for number, size in sizes)
        summed_up = self.reductions == 1 and (
            self.config.train.grad_accum_steps > 1 or (self.p.pp_microbatches or 1) > 1
        )  # in fp32
        self.ring(
            "tp: all-reduce of shared gradients",
            2 * (FP32 if summed_up else self.width * self.reductions) * shared,
            TP,
            self.reductions * sum(number for number, _ in sizes),
        )

    def of_loss(self) -> None:
        """Count the loss: over rows of the vocabulary the largest logit, the partition and the
        target's logit of each token; else all logits.
        """
        p = self.p
        if p.loss_parallel or self.config.objective.chunked:
            size = 2 * 3 * FP32 * self.tokens
            self.ring("loss: all-reduce over the vocabulary", size, TP, 3 * self.passes)
        else:
            rows = -(-self.model.vocab_size // p.tp) * p.tp
            size = self.tokens * rows * self.width
            self.ring("loss: all-gather of logits", size, TP, self.passes)

    def of_context(self) -> None:
        """Count CP: what mixers read of other parts of a sequence, and states."""
        if self.p.cp == 1:
            return
        traffic = ContextTraffic(
            config=self.config,
            model=self.model,
            tokens=self.tokens,
            rows=self.sequences,
            width=self.width,
        )
        blocks = [block for blocks in self.layers.values() for block in blocks]
        for name, size, calls in traffic.of_blocks(blocks, self.recomputed()):
            self.ring(name, round(size), CP, self.passes * calls)

    def of_experts(self) -> None:
        """Count EP: tokens to experts and back, both ways; with a capacity the room for tokens.

        Without a capacity, ranks exchange counts of tokens first. Full recomputation sends tokens
        to experts and back again.
        """
        moe = self.model.moe
        forward = self.mixtures(block for blocks in self.layers.values() for block in blocks)
        recomputed = 0 if self.layers_apart else self.mixtures(self.recomputed())
        if gathers(self.config, self.model):
            for name, size, ahead, back in gathered_bytes(self.config, self.model, self.width):
                number = (forward + recomputed) * ahead + forward * back
                calls = self.passes * number
                self.ring(name, round(size * self.tokens * number), EP, calls)
            self.of_scopes(forward, recomputed)
            return
        if moe.capacity_factor:
            rows = self.passes * rows_of_room(
                self.config, self.model, self.sequences // self.passes
            )
        else:
            rows = moe.top_k * self.tokens
            calls = self.passes * (forward + recomputed)
            size = INT64 * moe.num_experts * calls
            self.ring("ep: all-to-all of counts", size, EP, calls)
        size = self.width * self.model.dim * rows * (4 * forward + 2 * recomputed)
        calls = self.p.ep_overlap_degree * self.passes * (4 * forward + 2 * recomputed)
        self.ring("ep: all-to-all of tokens", size, EP, calls)
        self.of_scopes(forward, recomputed)

    def of_scopes(self, forward: int, again: int) -> None:
        """Count sums of load over the cp ranks of a sequence, or over all ranks with tokens of a
        micro-batch; none in recomputation where selective has kept the load.

        With a capacity the order of tokens matters: the load of each run of tokens is gathered.
        """
        p, moe = self.p, self.model.moe
        apart = moe.balance_scope == "sequence"
        axes = CP if apart else DATA
        of_each, of_all = (
            INT64 * moe.num_experts * count for count in (self.sequences, self.passes)
        )
        summed = 2 * (forward + (0 if self.selective else again))
        scoped = bool(moe.aux_loss_weight) + moe.gradient_scale
        name, calls = "moe: all-reduce of load", self.passes * (summed // 2)
        self.ring(name, summed * scoped * (of_each if apart else of_all), axes, calls * scoped)
        by_sequence = bool(moe.sequence_aux_loss_weight)
        self.ring(name, summed * by_sequence * of_each, CP, calls * by_sequence)
        if moe.capacity_factor:
            runs = of_each * p.runs_of_sequence if apart or p.cp > 1 else of_all
            size = self.size(axes) * runs * (forward + again)
            self.ring("moe: all-gather of load", size, axes, self.passes * (forward + again))

    def of_pipeline(self) -> None:
        """Count PP: hidden states to the next stage, gradients to the previous stage, and the
        gradient of a tied table to its other copy.
        """
        p, width = self.p, self.model.stream_dim(self.model.dim)
        hidden = self.tokens * width * self.residual // (p.tp if self.cut else 1)
        for stage in self.stages:
            for other in (stage - 1, stage + 1):
                if 0 <= other <= self.last_stage and owner(other, p.pp, p.pp_schedule) != owner(
                    stage, p.pp, p.pp_schedule
                ):
                    self.add("pp: hidden states and their gradients", hidden, PP, self.passes)
        ends = (0 in self.stages, self.last_stage in self.stages)
        if self.model.tie_embeddings and ends[0] != ends[1]:
            table = next(tensor for tensor in self.model.outside()[0] if tensor.role == EMBEDDING)
            size = FP32 * elements(table, tp=p.tp, shards=p.fsdp) // p.fsdp
            self.add("pp: gradient of the tied table", size, PP, 1)

    def of_numbers(self) -> None:
        """Count sums over all ranks: the loss and further reports of the objective, the square of
        the gradient norm, and requests of ranks.
        """
        objective, moe = self.config.objective, self.model.moe
        numbers = 2 + objective.extra_sums
        if getattr(objective, "mtp_loss_scaling_factor", 0):
            numbers += self.model.mtp_num_layers
        self.ring("all: loss and gradient norm", 2 * FP32 * numbers, (*PP, *DATA), 1)
        norms = self.p.dp_replicate if self.config.diloco.enabled else 1
        self.ring("all: loss and gradient norm", 2 * FP64 * (norms + 1), (*PP, *DATA, *TP), 1)
        records = self.model.n_mixtures * (moe.num_experts + REPORTED)
        self.ring("moe: all-reduce of records", 2 * FP64 * records, (*PP, *DATA), 1)

    def ring(self, name: str, size: int, axes: tuple[str, ...], calls: float) -> None:
        """Count all-gathers or reduce-scatters with a total of `size` bytes."""
        ranks = self.size(axes)
        self.add(name, size * (ranks - 1) // ranks, axes, calls)

    def add(self, name: str, sent: int, axes: tuple[str, ...], calls: float) -> None:
        """Count `sent` bytes of the rank in `calls` collectives."""
        collective = self.total.setdefault((name, axes), Sent(name, axes))
        collective.bytes += sent
        collective.calls += calls

    def size(self, axes: tuple[str, ...]) -> int:
        """Number of ranks of a group."""
        return prod(getattr(self.p, axis) for axis in axes)

    def kinds(self, *stages: int) -> Counter[Kind]:
        """Number of blocks of the stages, by kind."""
        return self.model.kinds_in([layer for stage in stages for layer in self.layers[stage]])

    def recomputed(self, without: str = "") -> list[int]:
        """Blocks of this rank with recomputation. without: only blocks without this kept tensor."""
        policy, n_layers = self.config.train.policy, self.model.n_layers
        return [
            block
            for blocks in self.layers.values()
            for block in blocks
            if policy.recomputed(block, n_layers, blocks.start)
            and without not in policy.of_block(block, n_layers)
        ]

    def others(self, stage: int) -> list[TensorSpec]:
        """Parameters of a stage outside its blocks."""
        return outside_blocks(self.model, first=stage == 0, last=stage == self.last_stage)

    def mixtures(self, blocks: Iterable[int]) -> int:
        """Number of the blocks with experts."""
        return sum(self.model.kind_of(block).moe for block in blocks)
