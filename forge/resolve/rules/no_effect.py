"""The rule on options that do nothing beside the values of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forge.config.field import default_of
from forge.config.launch import Local
from forge.config.model import Decoder
from forge.config.moe import MoE
from forge.config.objective import Pretrain
from forge.config.problems import literal, shown, typed
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Findings, get, rule

NEUTRAL = {
    "parallel.reshard_after_forward": "never",
    "parallel.reduce_gradients": "step",
    "parallel.pp_microbatches": 1,
    "parallel.pp_stages_per_rank": 1,
}
"""What an option is worked out to where it does nothing."""


@rule("no_effect", warning=True)
def no_effect(config: Config, world: World) -> Findings:
    """An option should have an effect: one of a technique acts only where the technique is used."""
    for acts, where, keys in _conditions(config, world):
        for key in () if acts else keys:
            parent, _, name = key.rpartition(".")
            default = default_of(type(get(config, parent)).__dataclass_fields__[name])
            value = get(config, key)
            value = list(value) if isinstance(value, tuple) else value
            if value not in (default, NEUTRAL.get(key)):
                text = literal(default) if "," in str(default) else shown(default)
                yield key, f"{key} has no effect {where}.", typed(key, text)


def _conditions(config: Config, world: World) -> Iterator[tuple[bool, str, Sequence[str]]]:
    """(whether they act, else why not, keys) of options that act in some configs only."""
    parallel, train, checkpoint = config.parallel, config.train, config.checkpoint
    model, objective = config.model, config.objective
    several = world.size > 1
    wrapped = several or config.precision.mixed_precision != "fp32"
    adds_up = wrapped and (train.grad_accum_steps > 1 or parallel.pp > 1)

    def of_layout(names: str) -> list[str]:
        return [f"parallel.{name}" for name in names.split()]

    yield several, "on one rank", of_layout("nccl_timeout_sec backend")
    yield several, "on one rank", ["train.nccl_health_check_interval"]
    yield wrapped, "on one rank in fp32", of_layout("cpu_offload reshard_after_forward")
    where = "with one micro-batch a step, or on one rank in fp32"
    yield adds_up, where, of_layout("reduce_gradients")
    of_tp = of_layout("sequence_parallel loss_parallel")
    yield parallel.tp > 1, "with parallel.tp=1", of_tp
    of_pp = of_layout("pp_schedule pp_microbatches pp_stages_per_rank pp_layers")
    yield parallel.pp > 1, "with parallel.pp=1", of_pp
    yield parallel.cp > 1, "with parallel.cp=1", of_layout("cp_method")
    gathered = parallel.cp_method == "all_gather" and parallel.cp > 1
    where = "with parallel.cp=1, or parallel.cp_method=ulysses"
    yield gathered, where, of_layout("cp_load_balance")
    yield parallel.layout != "auto", "where parallel.dp_shard is given", of_layout("layout")
    recomputes = train.activation_checkpointing != "none"
    where = "with train.activation_checkpointing=none"
    yield recomputes, where, ["train.recompute_every"]
    if isinstance(config.launch, Local):
        yield world.device == "cuda", "on a CPU", ["launch.devices_per_job"]
    if isinstance(objective, Pretrain):
        chunked = objective.loss_fn == "chunked_cross_entropy"
        where = f"with objective.loss_fn={objective.loss_fn}"
        yield chunked, where, ["objective.ce_chunk_size"]
    if isinstance(model, Decoder):
        of_experts = [f"model.moe.{name}" for name in MoE.__dataclass_fields__]
        yield model.moe.num_experts != 0, "with model.moe.num_experts=0", of_experts
    loads = checkpoint.init_from is not None or checkpoint.resume_from is not None
    yield loads, "without checkpoint.init_from", ["checkpoint.exclude_from_loading"]
