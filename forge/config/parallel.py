"""The `parallel` group: how the model and the batch are laid over devices."""

from __future__ import annotations

from math import prod

from forge.config.field import Condition, NumberOrWord, Section, opt, section

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
ONE_STAGE_SCHEDULES = ("gpipe", "1f1b")
LOOPED_SCHEDULES = ("interleaved_1f1b", "interleaved_zero_bubble")
V_SCHEDULE = "zbv_zero_bubble"
PP_SCHEDULES = (*ONE_STAGE_SCHEDULES, *LOOPED_SCHEDULES, V_SCHEDULE)
ZERO_BUBBLE_SCHEDULES = ("interleaved_zero_bubble", V_SCHEDULE)

SEVERAL_RANKS = Condition(lambda config, ranks: ranks > 1, "on one rank")
SHARDED = Condition(
    lambda config, ranks: ranks > 1 or config.one_rank_has_fsdp,
    "on one rank without FSDP: weights are in the format of products",
)
OFFLOADED = Condition(
    lambda config, ranks: ranks > 1 or config.precision.any_16_bits, "on one rank in fp32"
)
ADDED_UP = Condition(
    lambda config, ranks: (
        (ranks > 1 or config.precision.any_16_bits or config.precision.gradients_in_bf16)
        and (config.train.grad_accum_steps > 1 or config.parallel.pp > 1)
    ),
    "with one micro-batch a step, or on one rank in fp32",
)
REDUCED = Condition(
    lambda config, ranks: config.parallel.reduces, "where no ranks gather weights or add gradients"
)
HERE = Condition(
    lambda config, ranks: not config.parallel.cpu_offload, "with parallel.cpu_offload=true"
)
AUTO = Condition(
    lambda config, ranks: config.parallel.layout != "auto", "where parallel.dp_shard is given"
)
TP = Condition(lambda config, ranks: config.parallel.tp > 1, "with parallel.tp=1")
PP = Condition(lambda config, ranks: config.parallel.pp > 1, "with parallel.pp=1")
CP = Condition(lambda config, ranks: config.parallel.cp > 1, "with parallel.cp=1")
EP = Condition(lambda config, ranks: config.parallel.ep > 1, "with parallel.ep=1")
EP_ALL_GATHER = Condition(
    lambda config, ranks: config.parallel.gathers_tokens,
    "with parallel.ep=1, or parallel.ep_method=all_to_all",
)
CP_IN_RUNS = Condition(
    lambda config, ranks: config.parallel.cp > 1 and config.parallel.cp_method != "ulysses",
    "with parallel.cp=1, or parallel.cp_method=ulysses",
)


METHODS = {
    "parallel.cp_method": ("all_gather", "ulysses", "ring"),
    "parallel.ep_method": ("all_to_all", "all_gather"),
}
"""Exchanges of cp and of ep, the default first."""


@section
class Parallel(Section):
    """Degrees of parallelism; their product is the number of ranks."""

    all_free = True

    layout: str = opt(
        "given",
        "given = the degrees below; auto = degrees of 1 are chosen where dp_shard is -1",
        choices=("given", "auto"),
        acts_when=AUTO,
    )
    dp_shard: int = opt(-1, "FSDP shards; -1 = all devices not used by other degrees", ge=-1)
    dp_replicate: int = opt(1, "replicas of the FSDP groups", ge=1)
    reshard_after_forward: NumberOrWord = opt(
        "auto",
        "free gathered weights after forward; never = gather once a step; N = groups of N adjacent "
        "ranks, such as those of a node, keep them, and gather among themselves for backward; auto "
        "= not with pp, nor where nothing is sharded",
        gt=1,
        choices=("auto", "always", "never"),
        acts_when=SHARDED,
        idle="never",
    )
    symmetric_memory: bool = opt(
        False,
        "FSDP gathers and reduces in NCCL's symmetric memory, by torch's set_symm_mem_for_comm",
        acts_when=REDUCED,
    )
    reduce_gradients: str = opt(
        "auto",
        "reduce gradients once a step, or each micro-batch, for less memory; auto = by memory",
        choices=("auto", "step", "micro_batch"),
        acts_when=ADDED_UP,
        idle="step",
    )
    cpu_offload: bool = opt(
        False, "keep weights, gradients and optimizer state on the CPU", acts_when=OFFLOADED
    )
    offload_optimizer: bool = opt(
        False,
        "keep optimizer state and masters in pinned host memory except during the update",
        acts_when=HERE,
    )
    tp: int = opt(1, "tensor parallel degree", ge=1)
    sequence_parallel: bool = opt(
        True, "with tp: cut sequences outside attention and feed-forward layers", acts_when=TP
    )
    loss_parallel: bool = opt(
        True, "with tp: compute the loss without gathering logits", acts_when=TP
    )
    pp: int = opt(1, "pipeline parallel degree", ge=1)
    pp_schedule: str = opt("1f1b", "pipeline schedule", choices=PP_SCHEDULES, acts_when=PP)
    pp_microbatches: int | None = opt(
        None, "micro-batches of the pipeline; null = worked out", gt=0, acts_when=PP, idle=1
    )
    pp_stages_per_rank: int | None = opt(
        None, "stages a rank; null = 2 for schedules that loop, else 1", gt=0, acts_when=PP, idle=1
    )
    pp_layers: list[int] = opt(
        [], "blocks of each stage in order; [] = equal cost", gt=0, acts_when=PP
    )
    cp: int = opt(1, "context parallel degree", ge=1)
    cp_method: str = opt(
        "all_gather",
        "gather keys and values, exchange heads for sequence, or send keys round a ring; "
        "auto = the fastest on plan.device",
        choices=("auto", *METHODS["parallel.cp_method"]),
        acts_when=CP,
        idle="all_gather",
    )
    cp_load_balance: bool = opt(
        True,
        "with all_gather or ring: give each rank an early and a late part of the sequence",
        acts_when=CP_IN_RUNS,
    )
    ep: int = opt(1, "expert parallel degree", ge=1)
    ep_method: str = opt(
        "all_to_all",
        "send tokens to the ranks of their experts, whose numbers the host waits for; or gather "
        "all tokens and add up outputs, without a wait; auto = the fastest on plan.device",
        choices=("auto", *METHODS["parallel.ep_method"]),
        acts_when=EP,
        idle="all_to_all",
    )
    ep_rows_factor: float = opt(
        0.0,
        "with all_gather: rows for a rank's experts in training, in even shares, at least 1; a "
        "step with more is skipped; 0 = all that can come",
        ge=0,
        acts_when=EP_ALL_GATHER,
    )
    ep_overlap_degree: int = opt(
        1,
        "parts of a layer's rows in training: a part travels to experts and back while another is "
        "computed; 1 = whole",
        ge=1,
        acts_when=EP,
        idle=1,
    )
    nccl_timeout_sec: int = opt(
        1800,
        "timeout of collectives until the first step, and of host collectives always, in seconds",
        gt=0,
        acts_when=SEVERAL_RANKS,
    )
    nccl_train_timeout_sec: int = opt(
        600,
        "timeout of device collectives after the first step, in seconds, if below nccl_timeout_sec",
        gt=0,
        acts_when=SEVERAL_RANKS,
    )
    backend: str = opt(
        "cpu:gloo,cuda:nccl",
        "torch.distributed backend, of each device type or of all",
        acts_when=SEVERAL_RANKS,
    )

    @property
    def train_timeout_sec(self) -> int:
        """Seconds a collective of devices may take after the first step."""
        return min(self.nccl_timeout_sec, self.nccl_train_timeout_sec)

    def degrees(self) -> dict[str, int]:
        """The six degrees by name."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def fsdp(self) -> int:
        """Ranks FSDP shards over: dp_shard * cp * ep."""
        return self.dp_shard * self.cp * self.ep

    @property
    def reduces(self) -> bool:
        """Whether gradients are reduced over ranks, by FSDP."""
        return self.fsdp * self.dp_replicate > 1

    @property
    def regathering_ranks(self) -> int:
        """Ranks that weights of a block are gathered from for backward; 1 = they stay gathered."""
        after = self.reshard_after_forward
        if isinstance(after, int):
            return after
        return self.fsdp if after == "always" else 1

    @property
    def efsdp(self) -> int:
        """Ranks FSDP shards experts over, separately for each ep rank: dp_shard * cp."""
        return self.dp_shard * self.cp

    @property
    def gathers_tokens(self) -> bool:
        """Whether the experts of a rank read the tokens of all ep ranks."""
        return self.ep > 1 and self.ep_method == "all_gather"

    @property
    def product_without_dp_shard(self) -> int:
        """The number of ranks spanned by one FSDP shard index."""
        return prod(size for axis, size in self.degrees().items() if axis != "dp_shard")

    @property
    def runs_of_sequence(self) -> int:
        """Runs of adjacent tokens of a sequence on a rank: two where cp balances its work."""
        balanced = self.cp > 1 and self.cp_method != "ulysses" and self.cp_load_balance
        return 2 if balanced else 1

    @property
    def kept_keys(self) -> float:
        """Keys kept for backward for a token of a rank: gathered ones up to the end of each run, on
        the rank with the most.
        """
        if self.cp == 1 or self.cp_method != "all_gather":
            return 1.0
        return self.cp + 0.5 if self.runs_of_sequence == 2 else float(self.cp)

    @property
    def sequence_factors(self) -> dict[str, int]:
        """Factors of the divisor of a row's places, by name; their product is 1 where no rank has a
        part of a row.
        """
        factors = {}
        if self.cp > 1:
            if self.runs_of_sequence == 2:
                factors["2 for parallel.cp_load_balance"] = 2
            factors["parallel.cp"] = self.cp
        if self.tp > 1 and self.sequence_parallel:
            factors["parallel.tp"] = self.tp
        return factors
