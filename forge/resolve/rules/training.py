"""Rules on batch, schedule, evaluation, checkpoints and profiling."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.root import Config
from forge.config.scheduler import Constant, Decay, horizon
from forge.plan.layout import data_ranks
from forge.plan.world import World
from forge.resolve.rule import Finding, rule

BATCH = (
    "train.batch_size",
    "train.seq_len",
    "train.grad_accum_steps",
    "train.global_batch_size",
    "train.global_batch_tokens",
)


@rule("train.batch_size", reads=("train.batch_size",))
def batch_size(config: Config, world: World) -> Iterator[Finding]:
    """A micro-batch has a sequence or more; train.batch_size=-1 works it out."""
    if config.train.batch_size == 0:
        yield (
            "train.batch_size=0",
            "a micro-batch of no sequence trains nothing.",
            "train.batch_size=1, or -1 to work it out",
        )


@rule("train.global_batch_tokens", reads=BATCH)
def global_batch_tokens(config: Config, world: World) -> Iterator[Finding]:
    """train.global_batch_tokens must be train.global_batch_size sequences of train.seq_len tokens."""
    train = config.train
    tokens, size = train.global_batch_tokens or 0, train.global_batch_size or 0
    if tokens != size * train.seq_len:
        what = f"train.global_batch_tokens ({tokens}) is not train.global_batch_size ({size}) * train.seq_len ({train.seq_len})."
        legal = _whole(size, train.batch_size * data_ranks(config)) * train.seq_len
        yield f"train.global_batch_tokens={tokens}", what, f"train.global_batch_tokens={legal}"


@rule("train.global_batch_size", reads=BATCH)
def global_batch_size(config: Config, world: World) -> Iterator[Finding]:
    """train.global_batch_size must be a whole number of micro-batches on every rank."""
    train, ranks = config.train, data_ranks(config)
    size, micro = train.global_batch_size or 0, config.train.batch_size * ranks
    whole_tokens = train.global_batch_tokens == size * train.seq_len
    if whole_tokens and micro and size != train.grad_accum_steps * micro:
        what = f"train.global_batch_size ({size}) is not a multiple of train.batch_size ({train.batch_size}) * {ranks} ranks = {micro}."
        fix = f"train.global_batch_size={_whole(size, micro)}"
        if size < micro and size % ranks == 0:
            fix = f"train.batch_size={size // ranks}"
        yield f"train.global_batch_size={size}", what, fix


@rule(
    "train.recompute_every",
    reads=("train.recompute_every", "train.activation_checkpointing"),
    warning=True,
)
def recompute_every(config: Config, world: World) -> Iterator[Finding]:
    """train.recompute_every chooses among the blocks that train.activation_checkpointing
    recomputes.
    """
    every = config.train.recompute_every
    if every > 1 and config.train.activation_checkpointing == "none":
        what = "train.recompute_every has no effect with train.activation_checkpointing=none."
        yield f"train.recompute_every={every}", what, "train.activation_checkpointing=full"


@rule("scheduler.warmup", reads=("scheduler.warmup_steps", "train.max_steps"), warning=True)
def warmup(config: Config, world: World) -> Iterator[Finding]:
    """Warm-up should end before train.max_steps, or the peak learning rate is never used."""
    schedule = config.scheduler
    if isinstance(schedule, Constant) and (schedule.warmup_steps or 0) >= config.train.max_steps:
        what = f"warm-up ({schedule.warmup_steps} steps) does not end before train.max_steps ({config.train.max_steps})."
        yield (
            f"scheduler.warmup_steps={schedule.warmup_steps}",
            what,
            f"scheduler.warmup_steps={config.train.max_steps // 10}",
        )


@rule(
    "scheduler.horizon",
    reads=(
        "scheduler.warmup_steps",
        "scheduler.decay_steps",
        "scheduler.stable_steps",
        "train.max_steps",
    ),
    warning=True,
)
def schedule_horizon(config: Config, world: World) -> Iterator[Finding]:
    """The schedule should end where the run ends."""
    schedule, end = config.scheduler, config.train.max_steps
    if (
        isinstance(schedule, Decay)
        and (schedule.warmup_steps or 0) < end
        and horizon(config.scheduler) != end
    ):
        reach = (
            "stays at the floor from there"
            if horizon(config.scheduler) < end
            else "never reaches its floor"
        )
        what = f"the schedule spans {horizon(config.scheduler)} steps and the run {end}: the learning rate {reach}."
        yield (
            f"scheduler.decay_steps={schedule.decay_steps}",
            what,
            "scheduler.decay_steps=null spans what is left of the run",
        )


@rule("eval.stop_needs_eval", reads=("eval.enabled", "eval.target", "eval.patience"))
def stop_needs_eval(config: Config, world: World) -> Iterator[Finding]:
    """eval.target and eval.patience need eval.enabled=true."""
    section = config.eval
    if not section.enabled:
        for key, value, default in (
            ("target", section.target, None),
            ("patience", section.patience, 0),
        ):
            if value != default:
                yield (
                    f"eval.{key}={value}",
                    f"eval.{key} needs evaluation, and eval.enabled is false.",
                    "eval.enabled=true",
                )


@rule("eval.interval", reads=("eval.interval", "train.max_steps"), warning=True)
def eval_interval(config: Config, world: World) -> Iterator[Finding]:
    """Early stopping needs more than one evaluation in the run."""
    section = config.eval
    if section.enabled and section.patience and section.interval >= config.train.max_steps:
        what = f"eval.patience={section.patience} never acts: the only evaluation is at the end (train.max_steps={config.train.max_steps})."
        yield (
            f"eval.interval={section.interval}",
            what,
            f"eval.interval={max(config.train.max_steps // 10, 1)}",
        )


@rule("checkpoint.pinned", reads=("checkpoint.async_mode", "run.device"))
def pinned(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.async_mode=async_with_pinned_mem stages through page-locked memory, which needs a
    GPU.
    """
    if config.checkpoint.async_mode == "async_with_pinned_mem" and config.run.device != "cuda":
        yield (
            "checkpoint.async_mode=async_with_pinned_mem",
            "page-locked memory needs a GPU; this run is on the CPU.",
            "checkpoint.async_mode=async",
        )


@rule("checkpoint.two_starts", reads=("checkpoint.init_from", "checkpoint.resume_from", "run.dir"))
def two_starts(config: Config, world: World) -> Iterator[Finding]:
    """A new run starts from checkpoint.init_from or from checkpoint.resume_from elsewhere, not from
    both.
    """
    section = config.checkpoint
    if (
        section.init_from is not None
        and section.resume_from is not None
        and not section.resume_from.isdecimal()
    ):
        what = "checkpoint.resume_from takes the weights from its checkpoint too, and checkpoint.init_from would have no effect."
        yield (
            f"checkpoint.init_from={section.init_from}",
            what,
            "checkpoint.init_from=null or checkpoint.resume_from=null",
        )


@rule("checkpoint.exclude_unused", reads=("checkpoint.exclude_from_loading",), warning=True)
def exclude_unused(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.exclude_from_loading is read together with checkpoint.init_from or resume_from
    only.
    """
    section = config.checkpoint
    if section.exclude_from_loading and section.init_from is None and section.resume_from is None:
        key, fix = (
            f"checkpoint.exclude_from_loading={list(section.exclude_from_loading)}",
            "checkpoint.init_from=..., or checkpoint.exclude_from_loading=[]",
        )
        yield (
            key,
            "checkpoint.exclude_from_loading has no effect without checkpoint.init_from.",
            fix,
        )


@rule("checkpoint.keep_best", reads=("checkpoint.keep_best", "eval.enabled"))
def keep_best(config: Config, world: World) -> Iterator[Finding]:
    """checkpoint.keep_best needs eval.enabled=true."""
    if config.checkpoint.keep_best and not config.eval.enabled:
        what = "the best checkpoint is known by evaluation, and eval.enabled is false."
        yield f"checkpoint.keep_best={config.checkpoint.keep_best}", what, "eval.enabled=true"


@rule("profiling.window", reads=("profiling.start_step", "profiling.end_step"))
def window(config: Config, world: World) -> Iterator[Finding]:
    """profiling.end_step must be greater than profiling.start_step."""
    section = config.profiling
    if section.end_step <= section.start_step:
        what = f"profiling.end_step ({section.end_step}) must be greater than profiling.start_step ({section.start_step})."
        yield (
            f"profiling.end_step={section.end_step}",
            what,
            f"profiling.end_step={section.start_step + 3}",
        )


@rule(
    "profiling.beyond",
    reads=("profiling.enable", "profiling.end_step", "train.max_steps"),
    warning=True,
)
def profiling_beyond(config: Config, world: World) -> Iterator[Finding]:
    """The profiled window should lie within the run."""
    section, end = config.profiling, config.train.max_steps
    if section.enable and section.end_step > end:
        yield (
            f"profiling.end_step={section.end_step}",
            f"the run ends at step {end}, so "
            + ("the trace is cut there." if section.start_step <= end else "nothing is traced."),
            f"train.max_steps={section.end_step}",
        )


@rule("profiling.ranks", reads=("profiling.enable", "profiling.ranks"))
def profiling_ranks(config: Config, world: World) -> Iterator[Finding]:
    """profiling.ranks names ranks of the run."""
    section = config.profiling
    absent = [rank for rank in section.ranks if rank >= world.size]
    if section.enable and absent:
        what = f"there is no rank {absent[0]}: the run has {world.size} rank{'s' * (world.size > 1)}, counted from 0."
        yield (
            f"profiling.ranks={list(section.ranks)}",
            what,
            "profiling.ranks=[0], or profiling.ranks=[] for all",
        )


def _whole(size: int, micro: int) -> int:
    """The multiple of `micro` nearest to a batch of `size` sequences."""
    return max(round(size / max(micro, 1)), 1) * micro
