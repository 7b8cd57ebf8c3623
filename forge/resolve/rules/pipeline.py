"""Rules on pipeline parallelism: stages, micro-batches, and what cannot go through a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model import Decoder
from forge.config.parallel import ONE_STAGE_SCHEDULES, V_SCHEDULE, ZERO_BUBBLE_SCHEDULES
from forge.config.root import Config
from forge.plan.layout import legal_microbatches, sequences_of_rank
from forge.plan.world import World
from forge.resolve.rule import Finding, rule

STAGES = ("parallel.pp", "parallel.pp_schedule", "parallel.pp_stages_per_rank")


@rule("parallel.pp_stages", reads=STAGES)
def pp_stages(config: Config, world: World) -> Iterator[Finding]:
    """A rank has one stage under gpipe and 1f1b, two or more under interleaved schedules, two under
    zbv_zero_bubble.
    """
    parallel = config.parallel
    stages, schedule = parallel.pp_stages_per_rank or 1, parallel.pp_schedule
    if parallel.pp == 1:
        return
    if schedule in ONE_STAGE_SCHEDULES:
        wrong, demand = stages != 1, "one stage"
    elif schedule == V_SCHEDULE:
        wrong, demand = stages != 2, "two stages"
    else:
        wrong, demand = stages < 2, "two stages or more"
    if wrong:
        what = f"parallel.pp_schedule={schedule} has {demand} a rank, not {stages}."
        yield f"parallel.pp_stages_per_rank={stages}", what, "parallel.pp_stages_per_rank=null"


@rule("parallel.pp_layers", reads=(*STAGES, "parallel.pp_layers", "model.n_layers"))
def pp_layers(config: Config, world: World) -> Iterator[Finding]:
    """Every pipeline stage has a block: model.n_layers is at least pp * pp_stages_per_rank, and the
    sum of pp_layers where given.
    """
    model, parallel = config.model, config.parallel
    if not isinstance(model, Decoder) or parallel.pp == 1:
        return
    each, given = parallel.pp_stages_per_rank or 1, list(parallel.pp_layers)
    stages = parallel.pp * each
    arithmetic = (
        f"parallel.pp ({parallel.pp}) * parallel.pp_stages_per_rank ({each}) = {stages} stages"
    )
    if stages > model.n_layers:
        what = f"{arithmetic} cannot share {model.n_layers} blocks."
        yield f"parallel.pp={parallel.pp}", what, f"model.n_layers={stages}"
    elif given and (len(given), sum(given)) != (stages, model.n_layers):
        what = f"it has {len(given)} stages and {sum(given)} blocks; there are {arithmetic} and {model.n_layers} blocks."
        yield (
            f"parallel.pp_layers={_list(given)}",
            what,
            f"parallel.pp_layers={_list(_even(model.n_layers, stages))}",
        )


@rule(
    "parallel.pp_microbatches",
    reads=(*STAGES, "parallel.pp_microbatches", "train.batch_size", "train.grad_accum_steps"),
)
def pp_microbatches(config: Config, world: World) -> Iterator[Finding]:
    """Micro-batches are equal parts of a rank's sequences: under 1f1b at least pp, under
    interleaved schedules in even rounds of pp.
    """
    parallel, train = config.parallel, config.train
    parts, pp, schedule = parallel.pp_microbatches or 1, parallel.pp, parallel.pp_schedule
    sequences = sequences_of_rank(config)
    legal = legal_microbatches(sequences, pp, schedule)
    if pp == 1 or parts in legal:
        return
    if sequences % parts:
        demand = f"must be divisible by parallel.pp_microbatches ({parts})"
    elif schedule == "1f1b":
        demand = f"go through in {parts} parts, and 1f1b needs one or more for each of parallel.pp ({pp}) stages"
    else:
        demand = f"go through in {parts} parts, which do not make {parts // pp} equal rounds of parallel.pp ({pp}) or more"
    what = f"train.batch_size ({train.batch_size}) * train.grad_accum_steps ({train.grad_accum_steps}) = {sequences} sequences {demand}."
    fix = (
        f"parallel.pp_microbatches={min(legal, key=lambda other: abs(other - parts))}"
        if legal
        else "parallel.pp_schedule=gpipe"
    )
    yield f"parallel.pp_microbatches={parts}", what, fix


@rule("parallel.pp_reshard", reads=("parallel.pp", "parallel.reshard_after_forward"))
def pp_reshard(config: Config, world: World) -> Iterator[Finding]:
    """A pipeline keeps its weights gathered: parallel.reshard_after_forward=always cannot go with
    pp > 1.
    """
    parallel = config.parallel
    if parallel.pp > 1 and parallel.reshard_after_forward == "always":
        what = f"each of {parallel.pp_microbatches} micro-batches would gather a stage's weights twice, which torch's schedules do not do."
        yield "parallel.reshard_after_forward=always", what, "parallel.reshard_after_forward=never"


@rule("parallel.pp_reduce", reads=("parallel.pp", "parallel.reduce_gradients"))
def pp_reduce(config: Config, world: World) -> Iterator[Finding]:
    """A pipeline reduces its gradients once a step: parallel.reduce_gradients=micro_batch cannot go
    with pp > 1.
    """
    if config.parallel.pp > 1 and config.parallel.reduce_gradients == "micro_batch":
        what = "torch's schedules reduce the gradients of all micro-batches when the last of a stage is done."
        yield "parallel.reduce_gradients=micro_batch", what, "parallel.reduce_gradients=step"


@rule("parallel.pp_tied", reads=("parallel.pp", "parallel.pp_schedule", "model.tie_embeddings"))
def pp_tied(config: Config, world: World) -> Iterator[Finding]:
    """Under zbv_zero_bubble a rank has both ends of the model, and FSDP cannot share tied
    embeddings between two stages of a rank.
    """
    model, parallel = config.model, config.parallel
    if (
        isinstance(model, Decoder)
        and model.tie_embeddings
        and parallel.pp > 1
        and parallel.pp_schedule == V_SCHEDULE
    ):
        what = "the first and the last stage are on one rank, and FSDP cannot share a tied table between the two."
        yield (
            f"parallel.pp_schedule={V_SCHEDULE}",
            what,
            "model.tie_embeddings=false, or another schedule",
        )


@rule("parallel.pp_compile", reads=("parallel.pp", "parallel.pp_schedule", "train.compile_model"))
def pp_compile(config: Config, world: World) -> Iterator[Finding]:
    """Zero-bubble schedules split backward in two, which a compiled block cannot."""
    parallel = config.parallel
    if (
        parallel.pp > 1
        and parallel.pp_schedule in ZERO_BUBBLE_SCHEDULES
        and config.train.compile_model
    ):
        what = f"{parallel.pp_schedule} finds gradients of inputs and of weights apart; backward of a compiled block is one piece."
        yield "train.compile_model=true", what, "train.compile_model=false"


@rule(
    "parallel.pp_selective",
    reads=("parallel.pp", "parallel.pp_schedule", "train.activation_checkpointing"),
)
def pp_selective(config: Config, world: World) -> Iterator[Finding]:
    """Zero-bubble schedules go backward through a block twice, and what selective recompute saved
    is there once.
    """
    parallel = config.parallel
    if (
        parallel.pp > 1
        and parallel.pp_schedule in ZERO_BUBBLE_SCHEDULES
        and config.train.activation_checkpointing == "selective"
    ):
        what = f"{parallel.pp_schedule} goes backward through a block twice; torch keeps what selective recompute saved for one time."
        yield (
            "train.activation_checkpointing=selective",
            what,
            "train.activation_checkpointing=full, or another schedule",
        )


@rule(
    "parallel.pp_torch",
    reads=("parallel.pp", "parallel.pp_schedule", "parallel.tp", "model.moe.num_experts"),
)
def pp_torch(config: Config, world: World) -> Iterator[Finding]:
    """Before torch 2.13 zero-bubble schedules cannot go with tp > 1 or experts, nor can
    zbv_zero_bubble run on a CPU.
    """
    parallel, version = config.parallel, world.devices.torch
    if (
        parallel.pp == 1
        or parallel.pp_schedule not in ZERO_BUBBLE_SCHEDULES
        or version is None
        or version >= (2, 13)
    ):
        return
    found = f"torch {version[0]}.{version[1]}"
    if parallel.tp > 1 or config.model.is_moe:
        what = f"{found} loses the graph of a layer's weights when it finds their gradients apart from those of its inputs."
        yield (
            f"parallel.pp_schedule={parallel.pp_schedule}",
            what,
            "parallel.pp_schedule=interleaved_1f1b, or torch 2.13",
        )
    elif parallel.pp_schedule == V_SCHEDULE and world.device == "cpu":
        what = f"{found} lets a rank send to itself, which gloo cannot."
        yield (
            f"parallel.pp_schedule={parallel.pp_schedule}",
            what,
            "parallel.pp_schedule=interleaved_zero_bubble, or torch 2.13",
        )


@rule("parallel.pp_fp16", reads=("parallel.pp", "precision.mixed_precision"))
def pp_fp16(config: Config, world: World) -> Iterator[Finding]:
    """fp16 scales the loss, which a pipeline makes and differentiates itself: with pp > 1 use bf16
    or fp32.
    """
    if config.parallel.pp > 1 and config.precision.mixed_precision == "fp16":
        what = "the pipeline calls backward itself, and does not scale the loss as fp16 needs."
        yield "precision.mixed_precision=fp16", what, "precision.mixed_precision=bf16"


def _even(blocks: int, stages: int) -> list[int]:
    each, more = divmod(blocks, stages)
    return [each] * (stages - more) + [each + 1] * more


def _list(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
