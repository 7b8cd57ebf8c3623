"""Bytes that one rank sends in one optimizer step, by technique and collective; from the config
alone, without torch.

Counted as a ring sends them: of an all-gather or a reduce-scatter of S bytes over n ranks each rank
sends S * (n - 1) / n, in an all-reduce, which is one of each, twice that, and in an all-to-all (n -
1) / n of what it has. Of a message between two ranks all of it. Other algorithms (trees, or
switches that add up) send less, and none that is bound by bandwidth sends more. Experts are taken
to get as many tokens as one another, which is what a balanced router comes to; a rank whose tokens
all go to one other sends n / (n - 1) as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from shapes import added_up, elements, outside_blocks

from forge.config.model import Decoder
from forge.config.moe import is_moe_layer
from forge.config.objective import Pretrain
from forge.config.root import Config
from forge.config.tensors import EMBEDDING, TensorSpec
from forge.parallel.stages import cut_by_cost, owner, stages_of
from forge.plan.layout import sequences_of_rank
from forge.plan.memory import rows_of_room, runs_of_sequence

FP32, FP64, INT64 = 4, 8, 8
REPORTED = 8
"""What a layer of experts tells of a step beside the load of each: `forge.models.balance`."""


def bytes_per_step(config: Config) -> dict[str, int]:
    """What the rank that sends most sends in one update, by 'technique: collective'; of a resolved
    config. Empty for unknown models.

    Left out: the first step's set-up, evaluation, checkpoints, and the votes of a few bytes by
    which ranks agree to stop.
    """
    if not isinstance(config.model, Decoder):
        return {}
    ranks = (_Rank(config, config.model, rank).sent() for rank in range(config.parallel.pp))
    return dict(max(ranks, key=lambda sent: sum(sent.values())))


class _Rank:
    """One rank of the pipeline, the first of its tp ranks; the ranks of every other axis send the
    same.
    """

    def __init__(self, config: Config, model: Decoder, rank: int) -> None:
        self.config, self.model, self.p = config, model, config.parallel
        p = self.p
        per_rank = p.pp_stages_per_rank or 1
        self.last_stage = p.pp * per_rank - 1
        self.stages = stages_of(rank, p.pp, per_rank, p.pp_schedule)
        layers = list(p.pp_layers) or cut_by_cost(model, self.last_stage + 1, config.train.seq_len)
        starts = [0, *accumulate(layers)]
        self.layers = {stage: range(starts[stage], starts[stage + 1]) for stage in self.stages}
        self.blocks = sum(map(len, self.layers.values()))
        self.sequences = sequences_of_rank(config)
        self.tokens = self.sequences * config.train.seq_len // p.cp
        self.passes = (p.pp_microbatches or 1) if p.pp > 1 else config.train.grad_accum_steps
        self.width = FP32 if config.precision.mixed_precision == "fp32" else 2
        self.residual = FP32 if config.precision.residual_dtype == "fp32" else 2
        self.reductions = (
            config.train.grad_accum_steps if p.reduce_gradients == "micro_batch" else 1
        )
        self.cut = p.sequence_parallel and p.tp > 1
        self.selective = config.train.activation_checkpointing == "selective"
        self.layers_apart = (
            self.selective and p.ep > 1
        )  # as forge.parallel.activation_checkpoint has it
        self.total: Counter[str] = Counter()

    def sent(self) -> Counter[str]:
        """Bytes by technique."""
        self.of_data_parallel()
        self.of_width()
        self.of_context()
        self.of_experts()
        self.of_pipeline()
        self.of_numbers()
        return Counter({name: count for name, count in self.total.items() if count})

    def of_data_parallel(self) -> None:
        """FSDP gathers weights for each forward pass and, unless it keeps them, again for backward;
        a pipeline keeps them for the step.

        Those of experts, of which an ep rank has some, over fewer ranks.
        """
        p = self.p
        readings = self.config.train.grad_accum_steps if p.pp == 1 else 1
        again = 2 if p.reshard_after_forward == "always" else 1
        for stage in self.stages:
            blocks, others = self.of_blocks(stage), self.others(stage)
            for ranks, of_experts in ((p.fsdp, False), (p.efsdp, True)):
                inside = [one for one in blocks if one.of_experts == of_experts]
                block, rest = (
                    sum(elements(one, tp=p.tp, ep=p.ep, shards=ranks) for one in tensors)
                    for tensors in (inside, [] if of_experts else others)
                )
                self.ring(
                    "fsdp: all-gather of weights",
                    self.width * readings * (block * again + rest),
                    ranks,
                )
                self.ring(
                    "fsdp: reduce-scatter of gradients",
                    FP32 * self.reductions * (block + rest),
                    ranks,
                )
                self.ring(
                    "hsdp: all-reduce of gradients",
                    2 * FP32 * (block + rest) // ranks,
                    p.dp_replicate,
                )

    def of_width(self) -> None:
        """TP passes hidden states into and out of attention and feed-forward, forward and backward,
        and in what is recomputed.

        Recomputation goes two ways in, but the second one not where it leaves out what is around
        experts. Of the two ways out it goes the first, unless selective has kept what came of it,
        and never the last, whose result nothing in the block reads.
        """
        hidden, recomputed = self.tokens * self.model.dim * self.width, len(self.recomputed())
        in_again = 2 * recomputed - (self.mixtures(self.recomputed()) if self.layers_apart else 0)
        out_again = recomputed if self.config.train.activation_checkpointing == "full" else 0
        first, last = 0 in self.stages, self.last_stage in self.stages
        if self.cut:
            self.ring(
                "tp: all-gather of hidden states",
                hidden * (4 * self.blocks + in_again + first + last),
                self.p.tp,
            )
            self.ring(
                "tp: reduce-scatter of hidden states",
                hidden * (4 * self.blocks + out_again + first + last),
                self.p.tp,
            )
        else:
            self.ring(
                "tp: all-reduce of hidden states",
                2 * hidden * (4 * self.blocks + out_again + first + last),
                self.p.tp,
            )
        tables = [self.others(stage) for stage in self.stages]
        tables += [self.of_block(layer) for stage in self.stages for layer in self.layers[stage]]
        shared = sum(added_up(table, self.p.tp, parts=self.cut) for table in tables)
        summed_up = self.reductions == 1 and (
            self.config.train.grad_accum_steps > 1 or (self.p.pp_microbatches or 1) > 1
        )  # in fp32
        self.ring(
            "tp: all-reduce of shared gradients",
            2 * (FP32 if summed_up else self.width * self.reductions) * shared,
            self.p.tp,
        )
        if last:
            self.of_loss()

    def of_loss(self) -> None:
        """By rows of the vocabulary: of each token the largest logit, the partition and the
        target's logit. Else all logits.
        """
        p, objective = self.p, self.config.objective
        chunked = isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy"
        if p.loss_parallel or chunked:
            self.ring("loss: all-reduce over the vocabulary", 2 * 3 * FP32 * self.tokens, p.tp)
        else:
            rows = -(-self.model.vocab_size // p.tp) * p.tp
            self.ring("loss: all-gather of logits", self.tokens * rows * self.width, p.tp)

    def of_context(self) -> None:
        """CP gathers keys and values, or exchanges sequence for heads and back."""
        model, p = self.model, self.p
        token = self.tokens * model.computed_head_dim * self.width
        kv = 2 * token * (model.kv_heads // p.tp if model.kv_heads % p.tp == 0 else 1)
        passes = self.blocks + len(self.recomputed())
        if p.cp_method == "all_gather":
            self.ring("cp: all-gather of keys and values", p.cp * kv * passes, p.cp)
            self.ring("cp: reduce-scatter of their gradients", p.cp * kv * self.blocks, p.cp)
        else:
            queries_and_output = 2 * token * model.n_heads // p.tp
            self.ring(
                "cp: all-to-all of heads", (queries_and_output + kv) * (passes + self.blocks), p.cp
            )

    def of_experts(self) -> None:
        """EP sends tokens to their experts and back, forward and backward; with a capacity the room
        for them, filled or not.

        Without one, ranks tell each other how many come. Full recomputation sends them there and
        back again.
        """
        p, moe = self.p, self.model.moe
        forward = self.mixtures(block for blocks in self.layers.values() for block in blocks)
        again = 0 if self.layers_apart else self.mixtures(self.recomputed())
        if moe.capacity_factor:
            rows = self.passes * rows_of_room(
                self.config, self.model, self.sequences // self.passes
            )
        else:
            rows = moe.top_k * self.tokens
            self.ring(
                "ep: all-to-all of counts",
                INT64 * moe.num_experts * self.passes * (forward + again),
                p.ep,
            )
        self.ring(
            "ep: all-to-all of tokens",
            self.width * self.model.dim * rows * (4 * forward + 2 * again),
            p.ep,
        )
        self.of_scopes(forward, again)

    def of_scopes(self, forward: int, again: int) -> None:
        """Load is added up over the cp ranks of a sequence, or over all that have tokens of a
        micro-batch, unless selective has kept it.

        Where a capacity asks who comes first, the load of each run of tokens is gathered.
        """
        p, moe = self.p, self.model.moe
        apart = moe.balance_scope == "sequence"
        ranks = p.cp if apart else p.dp_replicate * p.fsdp
        of_each, of_all = (
            INT64 * moe.num_experts * count for count in (self.sequences, self.passes)
        )
        summed = 2 * (forward + (0 if self.selective else again))
        scoped = bool(moe.aux_loss_weight) + moe.gradient_scale
        self.ring(
            "moe: all-reduce of load", summed * scoped * (of_each if apart else of_all), ranks
        )
        self.ring(
            "moe: all-reduce of load", summed * bool(moe.sequence_aux_loss_weight) * of_each, p.cp
        )
        if moe.capacity_factor:
            runs = of_each * runs_of_sequence(p) if apart or p.cp > 1 else of_all
            self.ring("moe: all-gather of load", ranks * runs * (forward + again), ranks)

    def of_pipeline(self) -> None:
        """Hidden states go to the next stage, their gradients to the one before, and that of a tied
        table to its other copy.
        """
        p, hidden = (
            self.p,
            self.tokens * self.model.dim * self.residual // (self.p.tp if self.cut else 1),
        )
        for stage in self.stages:
            for other in (stage - 1, stage + 1):
                if 0 <= other <= self.last_stage and owner(other, p.pp, p.pp_schedule) != owner(
                    stage, p.pp, p.pp_schedule
                ):
                    self.total["pp: hidden states and their gradients"] += hidden
        ends = (0 in self.stages, self.last_stage in self.stages)
        if self.model.tie_embeddings and ends[0] != ends[1]:
            table = next(one for one in self.model.outside()[0] if one.role == EMBEDDING)
            self.total["pp: gradient of the tied table"] += (
                FP32 * elements(table, tp=p.tp, shards=p.fsdp) // p.fsdp
            )

    def of_numbers(self) -> None:
        """The loss and what the objective reports beside it, the square of the gradient norm, and
        whether any rank wishes something.
        """
        p, objective = self.p, self.config.objective
        numbers = 3 if isinstance(objective, Pretrain) and objective.z_loss_weight > 0 else 2
        self.ring("all: loss and gradient norm", 2 * FP32 * numbers, p.pp * p.dp_replicate * p.fsdp)
        self.ring(
            "all: loss and gradient norm", 2 * FP64 * 2, p.pp * p.dp_replicate * p.fsdp * p.tp
        )
        records = self.model.n_moe_layers * (self.model.moe.num_experts + REPORTED)
        self.ring("moe: all-reduce of records", 2 * FP64 * records, p.pp * p.dp_replicate * p.fsdp)

    def ring(self, name: str, size: int, ranks: int) -> None:
        """Count an all-gather or reduce-scatter of `size` bytes in all."""
        self.total[name] += size * (ranks - 1) // ranks

    def recomputed(self) -> list[int]:
        """Blocks of this rank that backward runs again: of each stage the first of every n."""
        train = self.config.train
        if train.activation_checkpointing == "none":
            return []
        return [
            block for blocks in self.layers.values() for block in blocks[:: train.recompute_every]
        ]

    def others(self, stage: int) -> list[TensorSpec]:
        """Parameters of a stage outside its blocks."""
        return outside_blocks(self.model, first=stage == 0, last=stage == self.last_stage)

    def of_blocks(self, stage: int) -> list[TensorSpec]:
        """Parameters of a stage inside its blocks."""
        return [one for layer in self.layers[stage] for one in self.of_block(layer)]

    def of_block(self, layer: int) -> list[TensorSpec]:
        return self.model.block_tensors(self.model.kind_of(layer))

    def mixtures(self, blocks: Iterable[int]) -> int:
        """How many of the blocks have experts."""
        return sum(is_moe_layer(self.model.moe, block) for block in blocks)
