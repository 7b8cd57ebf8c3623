"""Derivations of the layout: ranks, FSDP shards, the batch over them, and the parts of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.parallel import AXES, ONE_STAGE_SCHEDULES
from forge.config.root import Config
from forge.config.train import AT_ONCE, FEW
from forge.plan.layout import best_microbatches, data_ranks, sequences_of_rank
from forge.plan.world import World
from forge.resolve.derivation import Derived, derivation


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
