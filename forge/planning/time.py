"""Seconds of a step, by part: a roofline of products and memory, latency and bandwidth of
collectives, and overlap of both. docs/planning.md states the model and its error.

Overlap: FSDP's gathers and reductions run beside the products of blocks, forward and backward, but
for the first and the last block. Keys of a ring go beside attention, but for the last way of their
gradients. With parallel.ep_overlap_degree parts of experts' rows go beside products of other parts,
but for the first way there and the last way back. All other collectives wait: tp, cp, ep, and
messages of a pipeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log2

from forge.config.devices import DEVICES, Device
from forge.config.model.decoder import Decoder, Kind
from forge.config.parallel import LOOPED_SCHEDULES, Parallel
from forge.config.root import Config
from forge.planning import calibration as known
from forge.planning.activations import Activations
from forge.planning.compute import Compute, Pass, Seconds
from forge.planning.flops import flops_per_token
from forge.planning.links import group, link_bytes, seconds
from forge.planning.memory import Memory, memory_of
from forge.planning.state import STATE
from forge.planning.traffic import Rank, Sent
from forge.planning.world import World, ranks_per_node

GATHER, SCATTER = "fsdp: all-gather of weights", "fsdp: reduce-scatter of gradients"
REPLICAS = "hsdp: all-reduce of gradients"
RING = "cp: all-to-all of a ring"
OF_ROWS = (
    "ep: all-to-all of tokens",
    "ep: all-gather of tokens",
    "ep: reduce-scatter of outputs",
)
TIED = "pp: gradient of the tied table"
OVER_TOKENS = ("tp: all-gather of hidden states", "tp: reduce-scatter of hidden states")
WAITED = ("tp", "loss", "cp", "ep", "moe", "pp", "all")
"""Techniques with exposed collectives: no compute runs beside."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Time of one step of a layout.

    parts: seconds by part, summing to the step. hidden: seconds of communication beside products.
    links: bytes sent by a rank in a step over each kind of link. tokens: of all ranks. flops: a
    token, by `flops_per_token`. peak: FLOP/s of one device in bf16.
    """

    parts: Mapping[str, float]
    hidden: float
    links: Mapping[str, float]
    tokens: int
    ranks: int
    flops: float
    peak: float
    shares: Mapping[str, float] = field(init=False)

    def __post_init__(self) -> None:
        total = self.seconds
        shares = {name: part / total for name, part in self.parts.items()}
        object.__setattr__(self, "shares", shares)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of one device."""
        return self.tokens / self.seconds / self.ranks

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: FLOPs of forward and backward over the peak of bf16, without
        regard to causality and recomputation (PaLM, arXiv:2204.02311, appendix B).
        """
        return self.tokens_per_second * self.flops / self.peak


def step_time(
    config: Config,
    device: Device,
    gpus_per_node: int,
    memory: Memory | None = None,
) -> StepTime | None:
    """Estimate the step of a resolved config; None for unknown models. memory: its estimate."""
    model, parallel = config.decoder, config.parallel
    if model is None:
        return None
    ends = sorted({0, parallel.pp // 2, parallel.pp - 1})  # one of them is the slowest
    state = _of_state((memory or memory_of(config)).state)
    machine = (device, gpus_per_node)
    timed_ranks = [_OfRank(config, model, machine, state, rank) for rank in ends]
    slowest = max(timed_ranks, key=lambda rank: sum(rank.parts.values()))
    train, ranks = config.train, _ranks(parallel)
    return StepTime(
        parts={name: part for name, part in slowest.parts.items() if part > 0},
        hidden=slowest.hidden,
        links=link_bytes(slowest.sent, parallel, gpus_per_node),
        tokens=(train.global_batch_size or 0) * config.objective.rows * train.seq_len,
        ranks=ranks,
        flops=flops_per_token(config) or 0,
        peak=device.flops("bf16"),
    )


def planned_time(config: Config, gpus_per_node: int | None = None) -> StepTime | None:
    """Estimate the step on plan.device; None without plan.device or for unknown models."""
    plan = config.plan
    if plan.device not in DEVICES or config.run.device not in ("auto", "cuda"):
        return None
    return step_time(config, device_of(config), gpus_per_node or plan.gpus_per_node)


def expected_seconds(config: Config, world: World) -> float | None:
    """Seconds of all steps of a resolved config, without evaluations and checkpoints."""
    time, train = planned_time(config, ranks_per_node(world)), config.train
    if time is None:
        return None
    rows = train.batch_sizes.samples(train.max_steps) * config.objective.rows
    return rows * train.seq_len / time.tokens * time.seconds


def device_of(config: Config) -> Device:
    """The GPU of plan.device, with the network of the plan."""
    return DEVICES[config.plan.device or ""].on_network(config.plan.network_gbits)


def bubble(parallel: Parallel, microbatches: int) -> float:
    """Idle time of a pipeline's ranks, in micro-batches: pp - 1 under 1F1B (arXiv:2104.04473), less
    with several stages a rank, and under zero-bubble schedules.
    """
    stages = parallel.pp_stages_per_rank or 1
    share = known.ZERO_BUBBLE.get(parallel.pp_schedule, 1.0)
    looped = parallel.pp_schedule in LOOPED_SCHEDULES
    return (parallel.pp - 1) * share / (stages if looped else 1)


class _OfRank:
    """Seconds of a step for one rank of the pipeline, by part."""

    def __init__(
        self, config: Config, model: Decoder, machine: tuple[Device, int], state: int, rank: int
    ) -> None:
        """state: bytes of weights, gradients and optimizer state."""
        self.config, self.state = config, state
        self.device, self.node = machine
        self.rank = Rank(config, model, rank)
        self.sent: list[Sent] = self.rank.sent()
        self.passes = self.rank.passes
        self.compute = Compute(config, model, self.device, self.rank.tokens / self.passes)
        self.kinds = self.rank.kinds(*self.rank.stages)
        self.parts: dict[str, float] = defaultdict(float)
        self.hidden = 0.0
        self._of_compute(self.rank.last_stage in self.rank.stages)
        self._of_waits()
        self._of_fsdp()
        self._of_optimizer()
        self._of_scale()

    def _of_compute(self, has_head: bool) -> None:
        """Add blocks, head and loss of all micro-batches, and waits of the GPU for launches."""
        passes = self.passes
        blocks = {kind: self.compute.block(kind) for kind in self.kinds}
        number = self.kinds.total()
        forward, backward = (
            _sum(self.kinds, {kind: getattr(block, name) for kind, block in blocks.items()})
            for name in ("forward", "backward")
        )
        recomputed, moved = self._again(blocks)
        self.attention = (forward + backward + recomputed).attention
        head = self.compute.head() if has_head else Pass(forward=Seconds(), backward=Seconds())
        self.forward = forward.all + head.forward.all
        self.backward = backward.all + recomputed.all + head.backward.all
        total = forward + backward
        self.parts["products"] += passes * total.products
        self.parts["attention"] += passes * total.attention
        self.parts["elementwise"] += passes * total.memory
        self.parts["head and loss"] += passes * (head.forward.all + head.backward.all)
        self.parts["recomputed"] += passes * recomputed.all
        objective = self.config.objective
        ahead = passes * objective.rows_ahead / objective.rows
        self.parts["read ahead"] += ahead * (forward.all + head.forward.all)
        self.parts["offload"] += passes * self._beside(moved, self.forward, 2)
        more = (self.config.parallel.ep_overlap_degree - 1) * self._mixtures()
        launch = [
            number * of_block + more * of_part
            for of_block, of_part in zip(
                known.LAUNCH[self.compute.mode], known.PART_LAUNCH, strict=True
            )
        ]
        late = max(launch[0] - self.forward, 0) + max(launch[1] - self.backward, 0)
        self.parts["launches"] += passes * late

    def _again(self, blocks: Mapping[Kind, Pass]) -> tuple[Seconds, float]:
        """Recomputation of a micro-batch: the policy's share of forward FLOPs, and all elementwise
        kernels; and seconds of transfer for offloaded tensors.
        """
        config, model = self.config, self.rank.model
        policy, activations = config.train.policy, Activations(config, model)
        recomputed, host = Seconds(), 0.0
        for layers in self.rank.layers.values():
            for layer in layers:
                if not policy.recomputed(layer, model.n_layers, layers.start):
                    continue
                kind, storages = model.kind_of(layer), policy.of_block(layer, model.n_layers)
                block, forward = activations.block(kind), blocks[kind].forward
                share = block.again(storages) / block.flops if block else 1.0
                recomputed += Seconds(
                    products=share * forward.products,
                    attention=share * forward.attention,
                    memory=forward.memory,
                )
                host += block.held(storages).host if block else 0.0
        return recomputed, host * self.rank.tokens / self.passes / known.HOST_LINK

    def _of_waits(self) -> None:
        """Add exposed collectives, and the bubble of the pipeline."""
        waited, of_rows = 0.0, sum(map(self._named, OF_ROWS))
        for sent in self.sent:
            if sent.technique in WAITED:
                took = self._seconds(sent) + self._joined(sent)
                if sent.name == RING:
                    took = self._beside_attention(took)
                elif sent.name in OF_ROWS:
                    took = self._beside_experts(took, took / of_rows)
                self.parts[sent.technique] += took
                waited += 0.0 if sent.name == TIED or sent.technique == "all" else took
        if self._host_waits():
            host = self.passes * self._mixtures() * known.HOST_WAIT
            self.parts["ep"] += host
            waited += host
        per_pass = waited / self.passes
        self.forward, self.backward = self.forward + per_pass / 3, self.backward + per_pass * 2 / 3
        idle = bubble(self.config.parallel, self.passes) if self.config.parallel.pp > 1 else 0.0
        self.parts["bubble"] += idle * (self.forward + self.backward)

    def _beside_attention(self, took: float) -> float:
        """Exposed seconds of a ring, whose keys are sent on while a rank attends to them.

        Exposed is the last way of gradients in fp32, home to the rank of their keys.
        """
        ranks, wide = self.config.parallel.cp, max(4 / self.rank.width, 1.0)
        home = took * wide / (2 + wide) / (ranks - 1)
        attention = self.attention * (ranks - 1) / ranks
        return home + self._beside((took - home) / self.passes, attention, self.passes)

    def _beside_experts(self, took: float, share: float) -> float:
        """Exposed seconds of an exchange of experts' rows in parts, beside other parts' products.

        share: of the products that it goes beside, where others do too.
        """
        parts = self.config.parallel.ep_overlap_degree
        if parts == 1:
            return took
        experts = {kind: self.compute.experts(kind) for kind in self.kinds if kind.moe}
        products = share * sum(self.kinds[kind] * seconds for kind, seconds in experts.items())
        ends, beside = took / parts, took * (parts - 1) / parts / self.passes
        return ends + self._beside(beside, products * (parts - 1) / parts, self.passes)

    def _mixtures(self) -> int:
        """Number of layers with experts."""
        return sum(number for kind, number in self.kinds.items() if kind.moe)

    def _host_waits(self) -> bool:
        """Whether the host waits for the number of rows of each rank's experts."""
        parallel, moe = self.config.parallel, self.rank.model.moe
        return parallel.ep > 1 and not (moe.capacity_factor or parallel.gathers_tokens)

    def _joined(self, sent: Sent) -> float:
        """Seconds to copy the parts of a sequence together after a gather over tp, or apart before
        a reduction: several sequences lie one after the other, their parts do not.
        """
        if sent.name not in OVER_TOKENS or self.config.train.batch_size == 1:
            return 0.0
        ranks = self.config.parallel.tp
        return 2 * sent.bytes * ranks / (ranks - 1) / self.compute.stream

    def _of_fsdp(self) -> None:
        """Add the exposed time of gathers and reductions, and of copies around both.

        A pipeline gathers once before its first micro-batch, and reduces after its last.
        """
        parallel, passes, reductions = self.config.parallel, self.passes, self.rank.reductions
        gather, reduce = self._named(GATHER), self._named(SCATTER) + self._named(REPLICAS)
        forward_gather = gather / 2 if parallel.regathering_ranks > 1 else gather
        gathered = 1 if parallel.pp > 1 or parallel.reshard_after_forward == "never" else passes
        backward_gather, last = (gather - forward_gather) / passes, reduce / reductions
        exposed = self._beside(forward_gather / gathered, self.forward, gathered)
        exposed += self._beside(backward_gather + last, self.backward, reductions)
        exposed += self._beside(backward_gather, self.backward, passes - reductions)
        ends = (forward_gather + reduce) / max(self.kinds.total(), 1)
        self.parts["fsdp"] += exposed + ends
        self.parts["fsdp copies"] += self._copied() * known.COPIES_EXPOSED / self.compute.stream

    def _beside(self, communication: float, products: float, times: int) -> float:
        """Exposed seconds of communication beside products, with the slow-down of the products,
        `times` a step.
        """
        if times <= 0:
            return 0.0
        covered = min(communication, products)
        self.hidden += times * covered
        return times * (communication - covered + known.CONTENTION * covered)

    def _copied(self) -> float:
        """Bytes copied by FSDP in a step around its collectives, in full parameters."""
        parallel = self.config.parallel
        if parallel.fsdp * parallel.dp_replicate == 1:
            return 0.0
        total = 0.0
        for sent in self.sent:
            ranks = self.rank.size(sent.axes)
            full_bytes = sent.bytes * ranks / max(ranks - 1, 1)
            if sent.name == GATHER:
                total += known.GATHER_COPIES * full_bytes / self.rank.width
            elif sent.name == SCATTER:
                total += known.REDUCE_COPIES * full_bytes / 4
        return total

    def _of_optimizer(self) -> None:
        """Add the update: weights and state are read and written once, gradients read twice, for
        the norm too. With parallel.cpu_offload on the host, between transfers of gradients and
        weights.
        """
        parallel, moved = self.config.parallel, self.state
        bandwidth = self.compute.stream
        if parallel.cpu_offload:
            on_host = replace(parallel, cpu_offload=False)
            memory = memory_of(replace(self.config, parallel=on_host)).state
            moved, bandwidth = _of_state(memory), known.HOST_MEMORY
            sent = _of_state(memory, STATE[:2])
            self.parts["offload"] += sent / known.HOST_LINK
        self.parts["optimizer"] += 2 * moved / bandwidth

    def _of_scale(self) -> None:
        """Add waits of all ranks for the slowest one."""
        nodes = max(_ranks(self.config.parallel) / self.node, 1)
        total = sum(self.parts.values())
        self.parts["stragglers"] += known.STRAGGLERS * log2(nodes) * total

    def _seconds(self, sent: Sent) -> float:
        return seconds(sent, group(self.config.parallel, sent.axes, self.node), self.device)

    def _named(self, name: str) -> float:
        return sum(self._seconds(sent) for sent in self.sent if sent.name == name)


def _of_state(memory: Mapping[str, int], parts: tuple[str, ...] = STATE) -> int:
    """Bytes of weights, gradients, masters and optimizer state."""
    return sum(size for name, size in memory.items() if name.startswith(parts))


def _sum(kinds: Counter[Kind], each: Mapping[Kind, Seconds]) -> Seconds:
    return sum((each[kind] * number for kind, number in kinds.items()), Seconds())


def _ranks(parallel: Parallel) -> int:
    return parallel.dp_shard * parallel.product_without_dp_shard
