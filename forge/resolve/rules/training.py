"""Rules on the batch, the schedule, checkpoints and profiling."""

from __future__ import annotations

from forge.config.checkpoint import Checkpoint
from forge.config.horizon import SCHEDULE, follows, horizon
from forge.config.metrics import Metrics
from forge.config.optimizers.schedules import WSD, Constant, Decay
from forge.config.parallel import Parallel
from forge.config.precision import Precision
from forge.config.profiling import Profiling
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.train import Train
from forge.planning.layout import data_ranks
from forge.planning.world import World, ranks_of

SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"
RAMPUP, INCREMENT = "train.rampup_start", "train.rampup_increment"
ACCUMULATION = "train.grad_accum_steps"
BATCH = ("train.batch_size", "train.seq_len", ACCUMULATION, SIZE, TOKENS)


@rule(TOKENS, *BATCH)
def global_batch_tokens(config: Config, train: Train) -> Findings:
    """train.global_batch_tokens must be train.global_batch_size * train.seq_len."""
    tokens, size, seq = train.global_batch_tokens, train.global_batch_size or 0, train.seq_len
    if tokens != size * seq:
        legal = _nearest_multiple(size, train.batch_size * data_ranks(config)) * seq
        yield TOKENS, f"{TOKENS}={legal}"


@rule(SIZE, *BATCH)
def global_batch_size(config: Config, train: Train) -> Findings:
    """train.global_batch_size must be a whole number of micro-batches on every rank."""
    ranks, size, micro = data_ranks(config), train.global_batch_size or 0, train.batch_size
    of_all, tokens_agree = micro * ranks, train.global_batch_tokens == size * train.seq_len
    if tokens_agree and of_all and size != train.grad_accum_steps * of_all:
        message = f"{SIZE} ({size}) is not a multiple of train.batch_size ({micro}) * {ranks} ranks"
        hint = f"{SIZE}={_nearest_multiple(size, of_all)}"
        if size < of_all and size % ranks == 0:
            hint = f"train.batch_size={size // ranks}"
        yield SIZE, f"{message} = {of_all}.", hint


@rule("train.accumulation", *BATCH, warning=True)
def accumulation(config: Config, train: Train) -> Findings:
    """A typed train.grad_accum_steps is not used where train.global_batch_size decides on it."""
    typed = [word.partition("=")[2] for word in config.overrides if word.startswith(ACCUMULATION)]
    if typed and typed[-1].isdigit() and int(typed[-1]) != train.grad_accum_steps:
        message = (
            f"{ACCUMULATION}={typed[-1]} is not used: {SIZE} ({train.global_batch_size}) with "
            f"train.batch_size ({train.batch_size}) on {data_ranks(config)} ranks makes "
            f"{train.grad_accum_steps} micro-batches a step."
        )
        yield ACCUMULATION, message, f"{SIZE}={int(typed[-1]) * _of_all(config)}"


@rule(RAMPUP, RAMPUP, INCREMENT, *BATCH)
def rampup(config: Config, train: Train) -> Findings:
    """train.rampup_start must be less than train.global_batch_size."""
    size, start = train.global_batch_size or 0, train.rampup_start
    if start and start >= size:
        below = size // 2 // max(_of_all(config), 1) * _of_all(config)
        yield RAMPUP, f"{RAMPUP} ({start}) is not less than {SIZE} ({size}).", f"{RAMPUP}={below}"


@rule("train.rampup_sizes", RAMPUP, INCREMENT, *BATCH)
def rampup_sizes(config: Config, train: Train) -> Findings:
    """Under ramp-up each size is a whole number of micro-batches on every rank, and the last is
    train.global_batch_size.
    """
    size, start, of_all = train.global_batch_size or 0, train.rampup_start, _of_all(config)
    increment = train.rampup_increment or start
    if not 0 < start < size or not of_all or size % of_all:
        return
    of_ranks = f"a multiple of train.batch_size ({train.batch_size}) * {data_ranks(config)} ranks"
    if start % of_all:
        message = f"{RAMPUP} ({start}) is not {of_ranks} = {of_all}."
        yield RAMPUP, message, f"{RAMPUP}={_nearest_multiple(start, of_all)} {INCREMENT}={of_all}"
    elif increment % of_all or (size - start) % increment:
        message = (
            f"{INCREMENT} ({increment}) does not lead from {RAMPUP} ({start}) to {SIZE} ({size})"
        )
        message += f" in equal steps, each {of_ranks} = {of_all}."
        legal = [n for n in range(of_all, size - start + 1, of_all) if not (size - start) % n]
        yield INCREMENT, message, f"{INCREMENT}={min(legal, key=lambda n: abs(n - increment))}"


@rule("train.rampup_pp", RAMPUP, "parallel.pp")
def rampup_pp(train: Train, parallel: Parallel) -> Findings:
    """A pipeline has as many micro-batches in every step, so that no batch grows."""
    if train.rampup_start and parallel.pp > 1:
        yield RAMPUP, f"{RAMPUP}=0, or parallel.pp=1"


def _of_all(config: Config) -> int:
    """Sequences of a micro-batch of all ranks."""
    return config.train.batch_size * data_ranks(config)


def _nearest_multiple(size: int, micro: int) -> int:
    return max(round(size / max(micro, 1)), 1) * micro


@rule("scheduler.warmup", "scheduler.warmup_steps", "train.max_steps", warning=True)
def warmup(scheduler: Constant, train: Train) -> Findings:
    """scheduler.warmup_steps should be less than train.max_steps, or its peak is not reached."""
    if (scheduler.warmup_steps or 0) >= train.max_steps:
        yield "scheduler.warmup_steps", f"scheduler.warmup_steps={train.max_steps // 10}"


@rule("scheduler.ratios", "scheduler.warmup_ratio", "scheduler.decay_ratio")
def ratios(scheduler: WSD) -> Findings:
    """scheduler.warmup_ratio and scheduler.decay_ratio are shares of a run, at most 1 together."""
    warmup, decay = scheduler.warmup_ratio or 0, scheduler.decay_ratio or 0
    if warmup + decay > 1:
        yield "scheduler.decay_ratio", f"scheduler.decay_ratio={1 - warmup:g}"


@rule("scheduler.steps_or_ratio", *SCHEDULE, "scheduler.warmup_ratio", "scheduler.decay_ratio")
def steps_or_ratio(scheduler: Constant, train: Train) -> Findings:
    """Warm-up is given in steps or as a share of train.max_steps, and so is the decay of wsd."""
    for phase in ("warmup", "decay"):
        ratio, key = getattr(scheduler, f"{phase}_ratio", None), f"scheduler.{phase}_steps"
        if ratio is not None and not follows(scheduler, key, train.max_steps):
            yield f"scheduler.{phase}_ratio", f"{key}=null, or scheduler.{phase}_ratio=null"


@rule(
    "scheduler.horizon",
    "scheduler.warmup_steps",
    "scheduler.decay_steps",
    "scheduler.stable_steps",
    "train.max_steps",
    warning=True,
)
def schedule_horizon(scheduler: Decay, train: Train) -> Findings:
    """The schedule should end where the run ends."""
    spans, end = horizon(scheduler), train.max_steps
    if (scheduler.warmup_steps or 0) < end != spans:
        message = f"the schedule spans {spans} steps and the run {end}: the learning rate"
        message += " stays at the floor from there." if spans < end else " never reaches its floor."
        hint = "scheduler.decay_steps=null spans what is left of the run"
        yield "scheduler.decay_steps", message, hint


@rule("checkpoint.pinned", "checkpoint.async_mode", "run.device")
def pinned(checkpoint: Checkpoint, run: Run) -> Findings:
    """checkpoint.async_mode=async_with_pinned_mem stages through page-locked memory, which needs a
    GPU.
    """
    if checkpoint.async_mode == "async_with_pinned_mem" and run.device != "cuda":
        yield "checkpoint.async_mode", "checkpoint.async_mode=async"


@rule("metrics.internals", "metrics.internals", "train.compile_model")
def internals_of_modules(metrics: Metrics, train: Train) -> Findings:
    """metrics.internals reads outputs of layers between modules, and compiled blocks have none."""
    if metrics.internals and train.compile_model:
        yield "metrics.internals", "train.compile_model=false, or metrics.internals=0"


@rule("profiling.window", "profiling.start_step", "profiling.end_step")
def window(profiling: Profiling) -> Findings:
    """profiling.end_step must be greater than profiling.start_step."""
    if profiling.end_step <= profiling.start_step:
        yield "profiling.end_step", f"profiling.end_step={profiling.start_step + 3}"


@rule("profiling.interval", "profiling.interval", "profiling.start_step", "profiling.end_step")
def interval(profiling: Profiling) -> Findings:
    """profiling.interval must be greater than the number of steps that are recorded."""
    steps = profiling.end_step - profiling.start_step + 1
    if 0 < profiling.interval <= steps and steps > 1:
        message = f"{steps} steps are recorded: the next window would begin inside of them."
        yield "profiling.interval", message, f"profiling.interval={10 * steps}"


@rule(
    "profiling.beyond",
    "profiling.enable",
    "profiling.end_step",
    "train.max_steps",
    warning=True,
)
def profiling_beyond(profiling: Profiling, train: Train) -> Findings:
    """profiling.end_step should be at most train.max_steps, or the trace is incomplete."""
    if profiling.enable and profiling.end_step > train.max_steps:
        yield "profiling.end_step", f"train.max_steps={profiling.end_step}"


@rule("profiling.ranks", "profiling.enable", "profiling.ranks")
def profiling_ranks(profiling: Profiling, world: World) -> Findings:
    """profiling.ranks names ranks of the run."""
    absent = [rank for rank in profiling.ranks if rank >= world.size]
    if profiling.enable and absent:
        message = (
            f"there is no rank {absent[0]}: the run has {ranks_of(world.size)}, counted from 0."
        )
        yield "profiling.ranks", message, "profiling.ranks=[0], or profiling.ranks=[] for all"


@rule("precision.residual_dtype", "precision.mixed_precision", "precision.residual_dtype")
def residual_dtype(precision: Precision) -> Findings:
    """Hidden states are kept in fp32 or in the format of precision.mixed_precision."""
    if precision.residual_dtype not in ("fp32", precision.mixed_precision):
        yield "precision.residual_dtype", "precision.residual_dtype=auto"


@rule("precision.mps", "precision.mixed_precision", "run.device")
def fp32_on_mps(precision: Precision, run: Run) -> Findings:
    """run.device=mps multiplies in fp32; weights in 16 bits need FSDP, which does not run there."""
    if run.device == "mps" and precision.mixed_precision != "fp32":
        yield "precision.mixed_precision", "precision=fp32"


@rule("precision.param_dtype", "precision.param_dtype", "precision.mixed_precision", "run.device")
def weights_in_16_bits(precision: Precision, run: Run) -> Findings:
    """Weights in precision.param_dtype=bf16 are multiplied in bf16 or fp32, which FSDP makes of
    them.
    """
    if not precision.weights_in_16_bits:
        return
    hint = "precision.param_dtype=fp32"
    if precision.mixed_precision == "fp16":
        message = (
            "precision.mixed_precision=fp16 scales losses for gradients that bf16 holds as is."
        )
        yield "precision.param_dtype", message, f"{hint}, or precision.mixed_precision=bf16"
    elif run.device == "mps":
        yield "precision.param_dtype", "FSDP does not run with run.device=mps.", hint


@rule("precision.grad_dtype", "precision.grad_dtype", "precision.mixed_precision")
def scaled_gradients(precision: Precision) -> Findings:
    """Gradients stored in bf16 are of products in bf16 or fp32: fp16 scales losses for gradients in
    fp32.
    """
    if precision.gradients_in_bf16 and precision.mixed_precision == "fp16":
        hint = "precision.mixed_precision=bf16"
        yield "precision.grad_dtype", f"precision.grad_dtype=fp32, or {hint}"


@rule("precision.stochastic_rounding", "precision.param_dtype", "precision.master_weights")
def one_way_of_rounding(precision: Precision) -> Findings:
    """Weights are rounded stochastically, or from masters that lose nothing; not both."""
    if precision.weights_in_16_bits and precision.stochastic_rounding and precision.master_weights:
        yield "precision.stochastic_rounding", "precision.master_weights=false"


@rule(
    "precision.lost_updates",
    "precision.param_dtype",
    "precision.master_weights",
    "precision.stochastic_rounding",
    warning=True,
)
def lost_updates(precision: Precision) -> Findings:
    """In weights of 16 bits an update is lost that is smaller than the 512th part of its weight."""
    protected = precision.stochastic_rounding or precision.master_weights
    if precision.weights_in_16_bits and not protected:
        hint = "precision.stochastic_rounding=true, or precision.master_weights=true"
        yield "precision.param_dtype", hint


@rule("precision.fp16_cpu", "precision.mixed_precision", "run.device", warning=True)
def slow_on_cpu(precision: Precision, run: Run) -> Findings:
    """16-bit matrix products are many times slower than fp32 on most CPUs."""
    if run.device == "cpu" and precision.mixed_precision in ("bf16", "fp16"):
        yield "precision.mixed_precision", "precision=auto"
