"""The `optimizer` group: how weights are updated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.optimizers.schedules import Scheduler

Factor = Callable[[int], float]
"""Factor of an option at an update by its number, from 0."""

FP32 = 4
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
SCHEDULES = ("constant", *DECAYS)
PATTERNS = ("no_decay_parameters", "trainable_parameters", "freeze_parameters")
GROUPED = ("optimizer.groups", *(f"optimizer.{option}" for option in PATTERNS))
"""Keys that choose an optimizer's parameters."""


@section
class Optimizer(Section):
    """What every optimizer has: a peak learning rate, weight decay, and which parameters it takes.

    takes: roles of the parameters that it can update, see `forge.config.model.tensors`; () = all.
    state_per_weight: values of fp32 that it keeps of each weight; None = not known. one_by_one:
    whether it can update one parameter without the others.
    """

    takes: ClassVar[tuple[str, ...]] = ()
    state_per_weight: ClassVar[int | None] = None
    one_by_one: ClassVar[bool] = True
    forges_own = (
        "lr_base_dim",
        "lr_dim_power",
        "weight_decay_schedule",
        "decay_embeddings",
        "no_decay_parameters",
        "trainable_parameters",
        "freeze_parameters",
        "groups",
    )

    _target_: str = MISSING
    lr: float = opt(3e-4, "peak learning rate", gt=0)
    lr_base_dim: int | None = opt(
        None,
        "width that lr is tuned for: at another, lr is multiplied by (model.dim / "
        "lr_base_dim) ^ lr_dim_power",
        gt=0,
    )
    lr_dim_power: float = opt(-0.5, "exponent of lr_base_dim")
    weight_decay: float = opt(
        0.1, "decoupled weight decay of the matrices, not of norms and biases", ge=0
    )
    weight_decay_schedule: str = opt(
        "constant", "weight decay over the run: constant, or down to 0", choices=SCHEDULES
    )
    decay_embeddings: bool = opt(True, "apply weight decay to embedding tables too")
    no_decay_parameters: list[str] = opt(
        [], "parameters without weight decay, by regular expressions found in their names"
    )
    trainable_parameters: list[str] = opt(
        [], "the only parameters to train, by regular expressions; [] = all"
    )
    freeze_parameters: list[str] = opt(
        [], "parameters that are not trained, by regular expressions found in their names"
    )
    groups: dict[str, Any] = opt(
        {},
        "parameters with options of their own, by name, each {roles: [embedding], lr: 3e-3} or "
        "{parameters: [wq], optimizer: adamw}",
    )

    def peak(self, dim: int | None) -> float:
        """The peak learning rate in a model of this width."""
        base = self.lr_base_dim
        return self.lr * (dim / base) ** self.lr_dim_power if base and dim else self.lr

    def state_bytes(self, shape: tuple[int, ...]) -> int | None:
        """Bytes of the state of a parameter of this shape; None = unknown."""
        values = self.state_per_weight
        return None if values is None else FP32 * values * math.prod(shape)

    def schedules(self, scheduler: Scheduler, horizon: int) -> dict[str, Factor]:
        """Factors of options other than lr, by their names in a group of parameters.

        horizon: updates in the run.
        """
        decay = DECAYS.get(self.weight_decay_schedule)
        return {"weight_decay": lambda step: decay(min(step / horizon, 1))} if decay else {}


CAUTIOUS = "weight decay only of weights that the update moves towards 0 too"
MOMENTS = ("fp32", "bf16")
"""Formats of stored moments."""


@section
class Adaptive(Optimizer):
    """What optimizers have that divide by the root of a second moment."""

    betas: tuple[float, float] = opt(
        (0.9, 0.95), "decay rates of the first and second moment", ge=0, lt=1
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)
