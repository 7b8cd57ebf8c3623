"""Rules on expert parallelism: the model it needs, and what its degree must divide."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model import Decoder
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule

EXPERTS = ("model.moe.num_experts", "model.moe.frequency")


@rule("parallel.ep_needs_moe", reads=("parallel.ep", "parallel.dp_shard", *EXPERTS))
def ep_needs_moe(config: Config, world: World) -> Iterator[Finding]:
    """Expert parallelism cuts experts and nothing else: parallel.ep above 1 needs a model that has
    some.
    """
    if config.parallel.ep > 1 and not config.model.is_moe:
        what = "parallel.ep > 1 needs a mixture-of-experts model; this one is dense."
        yield f"parallel.ep={config.parallel.ep}", what, "a model with experts"


@rule("parallel.ep_experts", reads=("parallel.ep", "parallel.dp_shard", *EXPERTS))
def ep_experts(config: Config, world: World) -> Iterator[Finding]:
    """Each expert parallel rank has as many experts: model.moe.num_experts must be divisible by
    parallel.ep.
    """
    model, ep = config.model, config.parallel.ep
    if isinstance(model, Decoder) and model.is_moe and model.moe.num_experts % ep:
        experts = model.moe.num_experts
        what = f"model.moe.num_experts ({experts}) must be divisible by parallel.ep ({ep})."
        yield f"parallel.ep={ep}", what, ""
