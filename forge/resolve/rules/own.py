"""Rules on sections whose file has a `_target_` and no schema."""

from __future__ import annotations

from forge.config.model.layer import Model
from forge.config.objectives.base import Objective
from forge.config.optimizers.base import Optimizer
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.targets.own import GIVEN, TARGET, Own

SCHEMA = "a schema of its own says it, see docs/extending.md"


@rule("own.target", *(f"{group}._target_" for group in GIVEN))
def own_target(config: Config) -> Findings:
    """A section has the options of the _target_ that its file names, and keeps that one."""
    for group in GIVEN:
        section = getattr(config, group)
        if isinstance(section, Own) and getattr(section, TARGET) != type(section).__name__:
            class_name = type(section).__name__
            message = f"the options of this section are those of {class_name}."
            yield (
                f"{group}._target_",
                message,
                f"a file of its own, or {group}._target_={class_name}",
            )


@rule("own.weight_decay", "optimizer.weight_decay", "optimizer._target_")
def weight_decay(optimizer: Optimizer) -> Findings:
    """optimizer.weight_decay must be 0 where the target has no parameter for it."""
    untaken = optimizer.untaken if isinstance(optimizer, Own) else ()
    if "weight_decay" in untaken and optimizer.weight_decay:
        message = f"{optimizer._target_} takes no weight_decay."
        yield "optimizer.weight_decay", message, "optimizer.weight_decay=0"


@rule(
    "own.not_known",
    *("model._target_", "optimizer._target_", "objective._target_"),
    warning=True,
)
def not_known(model: Model, optimizer: Optimizer, objective: Objective) -> Findings:
    """What a component costs should be known, which a schema says and a _target_ alone does not."""
    if isinstance(model, Own):
        message = (
            "its parameters, FLOPs and memory are not known: no estimate of memory, and no mfu."
        )
        yield "model._target_", f"{model._target_}: {message}", SCHEMA
    if isinstance(optimizer, Own):
        message = (
            "what it keeps of each weight is not known, and no part of the estimate of memory."
        )
        yield "optimizer._target_", f"{optimizer._target_}: {message}", SCHEMA
    if isinstance(objective, Own):
        message = "its metrics are taken for those of next-token prediction, and its memory too."
        yield "objective._target_", f"{objective._target_}: {message}", SCHEMA
