"""Rules of replicas that train apart, see `forge.config.replicas.diloco`."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.parallel import Parallel
from forge.config.replicas.diloco import DiLoCo
from forge.config.root import Config
from forge.config.rule import Derived, Findings, derivation, rule

REPLICAS = "diloco.replicas"
TEXT = ("pretrain", "sft")
OTHER_STATE = ("schedule_free_adamw", "adamw_low_bit")


@derivation("diloco.enabled", REPLICAS, "parallel.dp_replicate", writes=(REPLICAS,))
def number_of_replicas(diloco: DiLoCo, parallel: Parallel) -> Iterator[Derived]:
    """As many replicas as parallel.dp_replicate; the number belongs to the run."""
    if diloco.enabled and diloco.replicas is None:
        replicas = parallel.dp_replicate
        yield Derived(REPLICAS, replicas, f"parallel.dp_replicate={replicas}")


@rule(REPLICAS, REPLICAS, "diloco.enabled", "parallel.dp_replicate")
def replicas_of_layout(diloco: DiLoCo, parallel: Parallel) -> Findings:
    """diloco.replicas is parallel.dp_replicate, also where a run continues with another layout."""
    if diloco.enabled and diloco.replicas != parallel.dp_replicate:
        yield REPLICAS, f"parallel.dp_replicate={diloco.replicas}"


@rule("diloco.fragments", "diloco.fragments", "diloco.sync_period", "diloco.enabled")
def fragments_of_period(diloco: DiLoCo) -> Findings:
    """diloco.fragments are joined at different steps: at most diloco.sync_period of them."""
    if diloco.enabled and diloco.fragments > diloco.sync_period:
        yield "diloco.fragments", f"diloco.fragments={diloco.sync_period}"


@rule("diloco.overlap_steps", "diloco.overlap_steps", "diloco.sync_period", "diloco.enabled")
def overlap_within_period(diloco: DiLoCo) -> Findings:
    """diloco.overlap_steps are fewer than diloco.sync_period: a result is used before the next."""
    if diloco.enabled and diloco.overlap_steps >= diloco.sync_period:
        yield "diloco.overlap_steps", f"diloco.overlap_steps={diloco.sync_period - 1}"


@rule(
    "diloco.alone",
    "diloco.enabled",
    "parallel.pp",
    "parallel.cpu_offload",
    "parallel.offload_optimizer",
    "precision.param_dtype",
    "precision.mixed_precision",
    "train.optimizer_in_backward",
    "train.ema_decay",
    "train.skip_step_on_spikes",
    "metrics.norms_by_role",
    "model",
    "objective",
    "optimizer",
    "adapter",
    "run.elastic",
)
def apart_from_others(config: Config) -> Findings:
    """Replicas that train apart have the whole of each weight and its state in fp32, one objective
    on text, and one norm of each replica.
    """
    if not config.diloco.enabled:
        return
    for key, (is_so, hint) in _others(config).items():
        if is_so:
            yield key, "it does not compose with diloco.enabled=true.", hint


def _others(config: Config) -> dict[str, tuple[bool, str]]:
    """What does not compose, by key: whether it is so, and the way out."""
    train, parallel, precision = config.train, config.parallel, config.precision
    flags = {
        "parallel.cpu_offload": parallel.cpu_offload,
        "parallel.offload_optimizer": parallel.offload_optimizer,
        "train.optimizer_in_backward": train.optimizer_in_backward,
        "train.skip_step_on_spikes": train.skip_step_on_spikes,
        "metrics.norms_by_role": config.metrics.norms_by_role,
    }
    fp16 = precision.mixed_precision == "fp16"
    text, state = config.objective.schema_name in TEXT, config.optimizer.schema_name
    return {key: (value, f"{key}=false") for key, value in flags.items()} | {
        "parallel.pp": (parallel.pp > 1, "parallel.pp=1"),
        "precision.param_dtype": (precision.weights_in_16_bits, "precision.param_dtype=fp32"),
        "precision.mixed_precision": (fp16, "precision.mixed_precision=bf16"),
        "train.ema_decay": (train.ema_decay > 0, "train.ema_decay=0"),
        "run.elastic": (bool(config.run.elastic), "run.elastic=null"),
        "optimizer": (state in OTHER_STATE, "optimizer=adamw"),
        "adapter": (config.adapter.active, "adapter=none"),
        "model": (config.model.is_moe, "diloco=off"),
        "objective": (not text, "diloco=off"),
    }
