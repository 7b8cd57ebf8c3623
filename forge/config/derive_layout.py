"""Derivations of the layout: ranks, FSDP shards, the batch over them, and the parts of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.derivation import Derived, derivation
from forge.config.parallel import AXES, LOOPED_SCHEDULES, ONE_STAGE_SCHEDULES
from forge.config.root import Config
from forge.config.train import AT_ONCE, FEW
from forge.config.world import World


@derivation(
    reads=tuple(f"parallel.{axis}" for axis in AXES),
    writes=("run.num_processes", "parallel.dp_shard"),
)
def layout(config: Config, world: World) -> Iterator[Derived]:
    """The number of ranks, and FSDP over what the other degrees leave of it."""
    parallel = config.parallel
    if config.run.num_processes is None:
        yield Derived(key="run.num_processes", value=world.size, why=f"from {world.source}")
    if parallel.dp_shard == -1:
        others = parallel.product_without_dp_shard
        why = f"{world.size} ranks / {others} of the other degrees"
        yield Derived(key="parallel.dp_shard", value=max(world.size // others, 1), why=why)


@derivation(
    reads=("train.batch_size", "train.seq_len", "train.grad_accum_steps", "parallel.dp_shard"),
    writes=(
        "train.global_batch_size",
        "train.global_batch_tokens",
        "train.batch_size",
        "train.grad_accum_steps",
    ),
)
def batch(config: Config, world: World) -> Iterator[Derived]:
    """Global batch and accumulation, each from the other."""
    train, ranks = config.train, data_ranks(config)
    if train.global_batch_tokens is not None and train.global_batch_size is None:
        size = max(train.global_batch_tokens // train.seq_len, 1)
        yield Derived(
            key="train.global_batch_size",
            value=size,
            why=f"{train.global_batch_tokens} tokens / {train.seq_len} a sequence",
        )
    if train.batch_size == -1 and train.global_batch_size is None and train.grad_accum_steps == 1:
        size = -(-FEW // ranks) * ranks
        yield Derived(
            key="train.global_batch_size",
            value=size,
            why=f"{FEW} sequences, or one for each of {ranks} ranks",
        )
    if train.batch_size == -1:
        each = (train.global_batch_size or FEW * ranks) // ranks
        size = AT_ONCE if each % AT_ONCE == 0 else 1
        yield Derived(
            key="train.batch_size",
            value=size,
            why=f"at most {AT_ONCE}, of {each} sequences a rank and step",
        )
    if train.global_batch_size is not None:
        accumulation = max(train.global_batch_size // (max(train.batch_size, 1) * ranks), 1)
        if accumulation != train.grad_accum_steps:
            why = f"{train.global_batch_size} sequences / ({train.batch_size} a micro-batch * {ranks} ranks)"
            yield Derived(key="train.grad_accum_steps", value=accumulation, why=why)
    else:
        size = train.batch_size * train.grad_accum_steps * ranks
        why = f"{train.batch_size} a micro-batch * {train.grad_accum_steps} micro-batches * {ranks} ranks"
        yield Derived(key="train.global_batch_size", value=size, why=why)
    if train.global_batch_tokens is None:
        size = config.train.global_batch_size or 0
        yield Derived(
            key="train.global_batch_tokens",
            value=size * train.seq_len,
            why=f"{size} sequences * {train.seq_len} tokens",
        )


@derivation(
    reads=(
        "parallel.pp",
        "parallel.pp_schedule",
        "parallel.pp_microbatches",
        "train.batch_size",
        "train.grad_accum_steps",
    ),
    writes=("parallel.pp_stages_per_rank", "parallel.pp_microbatches"),
)
def pipeline(config: Config, world: World) -> Iterator[Derived]:
    """The stages and micro-batches of a pipeline; without one there is one of each."""
    parallel, train = config.parallel, config.train
    pp, schedule = parallel.pp, parallel.pp_schedule
    if parallel.pp_stages_per_rank is None:
        stages = 2 if pp > 1 and schedule not in ONE_STAGE_SCHEDULES else 1
        why = f"parallel.pp_schedule={schedule}" if pp > 1 else "parallel.pp=1"
        yield Derived(key="parallel.pp_stages_per_rank", value=stages, why=why)
    if parallel.pp_microbatches is None:
        sequences = sequences_of_rank(config)
        why = f"{sequences} sequences a rank and step, parallel.pp={pp}"
        chosen = best_microbatches(sequences, train.grad_accum_steps, pp, schedule) if pp > 1 else 1
        yield Derived(
            key="parallel.pp_microbatches", value=chosen, why=why if pp > 1 else "parallel.pp=1"
        )


def data_ranks(config: Config) -> int:
    """Ranks that draw their own data: dp_replicate * dp_shard * ep."""
    parallel = config.parallel
    return max(parallel.dp_shard, 1) * parallel.dp_replicate * parallel.ep


def sequences_of_rank(config: Config) -> int:
    """Sequences that a rank reads in one step."""
    return config.train.batch_size * config.train.grad_accum_steps


def legal_microbatches(sequences: int, pp: int, schedule: str) -> list[int]:
    """In how many equal parts that many sequences may go through a pipeline, the fewest first.

    torch's 1F1B needs a micro-batch for each stage; its looping schedules go in rounds of about pp,
    which must come out even.
    """

    def legal(parts: int) -> bool:
        if sequences % parts:
            return False
        if schedule == "1f1b":
            return parts >= pp
        return schedule not in LOOPED_SCHEDULES or parts % max(1, parts // pp) == 0

    small = [part for part in range(1, int(sequences**0.5) + 1) if sequences % part == 0]
    return [
        part for part in sorted({*small, *(sequences // part for part in small)}) if legal(part)
    ]


def best_microbatches(sequences: int, grad_accum_steps: int, pp: int, schedule: str) -> int:
    """The fewest legal parts that keep a pipeline two thirds busy, 2 * pp, else the most there are;
    no larger than a micro-batch.

    With m parts 1F1B idles (pp - 1) / (m + pp - 1) of the time (arXiv:2104.04473, section 2.2).
    """
    legal = legal_microbatches(sequences, pp, schedule)
    legal = [parts for parts in legal if parts % grad_accum_steps == 0] or legal or [sequences]
    return next((parts for parts in legal if parts >= 2 * pp), legal[-1])
