"""Derivations of the layout: ranks, FSDP shards, the batch over them, parts of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod

from forge.config.parallel import AXES, ONE_STAGE_SCHEDULES, Parallel
from forge.config.root import Config
from forge.config.rule import Derived, derivation
from forge.config.run import Run
from forge.config.train import AT_ONCE, FEW
from forge.planning.layout import best_microbatches, data_ranks, sequences_of_rank
from forge.planning.world import World

DEGREES = tuple(f"parallel.{axis}" for axis in AXES)
SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"
MICRO, ACCUMULATION = "train.batch_size", "train.grad_accum_steps"
PADDED = "data.pad_to_multiple_of"
STAGES, PARTS = "parallel.pp_stages_per_rank", "parallel.pp_microbatches"


@derivation(*DEGREES, writes=("run.num_processes", "parallel.dp_shard"))
def layout(run: Run, parallel: Parallel, world: World) -> Iterator[Derived]:
    """The number of ranks, and FSDP over what the other degrees leave of it."""
    if run.num_processes is None:
        yield Derived("run.num_processes", world.size, f"from {world.source}")
    if parallel.dp_shard == -1:
        other_degrees = parallel.product_without_dp_shard
        why = f"{world.size} ranks / {other_degrees} of the other degrees"
        yield Derived("parallel.dp_shard", max(world.size // other_degrees, 1), why)


@derivation(
    MICRO,
    "train.seq_len",
    ACCUMULATION,
    "parallel.dp_shard",
    writes=(SIZE, TOKENS, MICRO, ACCUMULATION),
)
def batch(config: Config) -> Iterator[Derived]:
    """Global batch and accumulation, each from the other."""
    train, ranks = config.train, data_ranks(config)
    size, tokens, micro = train.global_batch_size, train.global_batch_tokens, train.batch_size
    accumulation = train.grad_accum_steps
    if size is None and tokens is not None:
        size = max(tokens // train.seq_len, 1)
        yield Derived(SIZE, size, f"{tokens} tokens / {train.seq_len} a sequence")
    if size is None and micro == -1 and accumulation == 1:
        size = -(-FEW // ranks) * ranks
        yield Derived(SIZE, size, f"{FEW} sequences, or one for each of {ranks} ranks")
    if micro == -1:
        sequences = (size or FEW * ranks) // ranks
        micro = AT_ONCE if sequences % AT_ONCE == 0 else 1
        yield Derived(MICRO, micro, f"at most {AT_ONCE}, of {sequences} sequences a rank and step")
    if size is None:
        size = micro * accumulation * ranks
        why = f"{micro} a micro-batch * {accumulation} micro-batches * {ranks} ranks"
        yield Derived(SIZE, size, why)
    elif accumulation != max(size // (max(micro, 1) * ranks), 1):
        why = f"{size} sequences / ({micro} a micro-batch * {ranks} ranks)"
        yield Derived(ACCUMULATION, max(size // (max(micro, 1) * ranks), 1), why)
    if tokens is None:
        why = f"{size} sequences * {train.seq_len} tokens"
        yield Derived(TOKENS, size * train.seq_len, why)


@derivation(
    "parallel.pp", "parallel.pp_schedule", PARTS, MICRO, ACCUMULATION, writes=(STAGES, PARTS)
)
def pipeline(config: Config, parallel: Parallel) -> Iterator[Derived]:
    """The stages and micro-batches of a pipeline; without one there is one of each."""
    pp, schedule = parallel.pp, parallel.pp_schedule
    sequences, accumulation = sequences_of_rank(config), config.train.grad_accum_steps
    if parallel.pp_stages_per_rank is None:
        looped = pp > 1 and schedule not in ONE_STAGE_SCHEDULES
        why = f"parallel.pp_schedule={schedule}" if pp > 1 else "parallel.pp=1"
        yield Derived(STAGES, 2 if looped else 1, why)
    if parallel.pp_microbatches is None and pp == 1:
        yield Derived(PARTS, 1, "parallel.pp=1")
    elif parallel.pp_microbatches is None:
        parts = best_microbatches(sequences, accumulation, pp, schedule)
        yield Derived(PARTS, parts, f"{sequences} sequences a rank and step, parallel.pp={pp}")


@derivation(
    PADDED,
    "data.packing",
    "train.seq_len",
    "train.compile_model",
    "parallel.pp",
    writes=(PADDED,),
)
def padding(config: Config, parallel: Parallel) -> Iterator[Derived]:
    """Where rows end: at the longest of a micro-batch, or at train.seq_len."""
    data, seq_len = config.data, config.train.seq_len
    if data.pad_to_multiple_of != -1:
        return
    if why := why_whole_rows(config):
        yield Derived(PADDED, 0, why)
        return
    size, why = 8, "rows end with the longest of a micro-batch"
    if config.train.compile_model:
        size, why = max(seq_len // 4, 1), f"{why}, in four sizes, since each is compiled"
    yield Derived(PADDED, lcm(size, prod(parallel.sequence_factors.values())), why)


def why_whole_rows(config: Config) -> str:
    """Reason why each row has train.seq_len places; empty where rows may end earlier."""
    if not config.data.examples and config.data.packing != "none":
        return "rows are filled with text"
    if config.parallel.pp > 1:
        return "the stages of a pipeline send tensors of one shape"
    if config.model.is_moe:
        return "how tokens are spread over experts is of all places"
    if config.parallel.cp > 1 and config.decoder is not None:
        layers = (layer.mixer for _, layer in config.decoder.in_use())
        if any(mixer.recurrent and not mixer.absent for mixer in layers):
            return "convolutions look back over runs of a whole row"
    return ""
