"""The `optimizer` group: how weights are updated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.scheduler import Decay, Scheduler
from forge.config.tensors import EXPERT, MATRIX

Factor = Callable[[int], float]
"""Of an option, at an update by its number, from 0."""

FP32 = 4
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
SCHEDULES = ("constant", *DECAYS)
PATTERNS = ("no_decay_parameters", "trainable_parameters", "freeze_parameters")
GROUPED = ("optimizer.groups", *(f"optimizer.{option}" for option in PATTERNS))
"""Keys that say which parameters an optimizer takes."""


@section
class Optimizer(Section):
    """What every optimizer has: a peak learning rate, weight decay, and which parameters it takes.

    takes: roles of the parameters that it can update, see `forge.config.tensors`; () = all.
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
        None, "width that lr is of: at another, times (model.dim / this) ^ lr_dim_power", gt=0
    )
    lr_dim_power: float = opt(-0.5, "see lr_base_dim")
    weight_decay: float = opt(
        0.1, "decoupled weight decay of the matrices, not of norms and biases", ge=0
    )
    weight_decay_schedule: str = opt(
        "constant", "weight decay over the run: down to 0 but if constant", choices=SCHEDULES
    )
    decay_embeddings: bool = opt(True, "apply weight decay to embedding tables too")
    no_decay_parameters: list[str] = opt(
        [], "parameters without weight decay, by regular expressions found in their names"
    )
    trainable_parameters: list[str] = opt(
        [], "the only parameters that are trained, by regular expressions; [] = all"
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
        """Of what it keeps of a parameter of this shape; None = not known."""
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
"""Formats that moments are kept in."""


@section
class Adaptive(Optimizer):
    """What optimizers have that divide by the root of a second moment."""

    betas: tuple[float, float] = opt(
        (0.9, 0.95), "decay rates of the first and second moment", ge=0, lt=1
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)


@section
class Adam(Adaptive):
    """What AdamW and adam_pax have in common."""

    eps_root: float = opt(0.0, "added to the second moment, inside of the root", ge=0)
    mu_dtype: str = opt("fp32", "what the first moment is kept in", choices=MOMENTS)
    nu_dtype: str = opt("fp32", "what the second moment is kept in", choices=MOMENTS)
    cautious: bool = opt(False, CAUTIOUS)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        of_weight = sum(FP32 if one == "fp32" else 2 for one in (self.mu_dtype, self.nu_dtype))
        return of_weight * math.prod(shape)


@section
class AdamW(Adam):
    """AdamW (arXiv:1711.05101)."""

    schema_name = "adamw"
    _target_: str = "forge.optim.adam.adamw"
    fused: bool = opt(
        True,
        "one fused kernel for all parameters, where the device has it; there is none for eps_root, "
        "moments in bf16 and cautious",
    )

    @property
    def is_torchs(self) -> bool:
        """Whether torch's AdamW has all that is asked for."""
        in_fp32 = self.mu_dtype == self.nu_dtype == "fp32"
        return in_fp32 and not self.eps_root and not self.cautious


@section
class Lion(Optimizer):
    """Lion, the sign of a momentum (arXiv:2302.06675)."""

    schema_name = "lion"
    state_per_weight = 1
    _target_: str = "forge.optim.lion.Lion"
    betas: tuple[float, float] = opt(
        (0.9, 0.95), "how much of the momentum is in the sign, and its decay rate", ge=0, lt=1
    )
    cautious: bool = opt(False, CAUTIOUS)


@section
class Muon(Optimizer):
    """Muon: a momentum, orthogonalised (Jordan et al., 2024; arXiv:2502.16982)."""

    schema_name = "muon"
    state_per_weight = 1
    takes = (MATRIX, EXPERT)
    one_by_one = False
    _target_: str = "forge.optim.muon.Muon"
    momentum: float = opt(0.95, "decay rate of the momentum", gt=0, lt=1)
    momentum_start: float | None = opt(
        None, "the momentum at first, up to `momentum` over momentum_warmup_steps", gt=0, lt=1
    )
    momentum_warmup_steps: int = opt(400, "see momentum_start", gt=0)
    momentum_end: float | None = opt(
        None, "the momentum at the end, down to it as the learning rate decays", gt=0, lt=1
    )
    nesterov: bool = opt(True, "orthogonalise the gradient together with the momentum")
    ns_steps: int = opt(5, "steps of the Newton-Schulz iteration", gt=0, le=100)
    ns_dtype: str = opt(
        "auto", "format of its products: auto = bf16 on a GPU", choices=("auto", "fp32", "bf16")
    )
    consistent_rms: float | None = opt(
        None,
        "root mean square of an update, 0.2 = as AdamW's; null = times max(1, rows/columns)^0.5",
        gt=0,
    )
    cautious: bool = opt(False, "decay the weights alone that an update moves towards 0")

    def schedules(self, scheduler: Scheduler, horizon: int) -> dict[str, Factor]:
        """The momentum too: up linearly at first, and down linearly while the rate decays."""
        found, peak = super().schedules(scheduler, horizon), self.momentum
        start, end = self.momentum_start, self.momentum_end
        if start is None and end is None:
            return found
        length = (scheduler.decay_steps or 0) if isinstance(scheduler, Decay) else 0
        first = horizon - length

        def factor(step: int) -> float:
            if end is not None and length and step >= first:
                return 1 + (end / peak - 1) * min((step - first) / length, 1)
            if start is not None:
                return 1 + (start / peak - 1) * max(1 - step / self.momentum_warmup_steps, 0)
            return 1.0

        return found | {"momentum": factor}


@section
class NorMuon(Muon):
    """NorMuon (arXiv:2510.05491) as nanochat has it: rows of one length, Polar Express
    (arXiv:2505.16932), a second moment of each row or column, cautious decay.
    """

    schema_name = "normuon"
    _target_: str = "forge.optim.normuon.NorMuon"
    beta2: float = opt(0.9, "decay rate of the second moment", ge=0, lt=1)
    cautious: bool = opt(True, "decay the weights alone that an update moves towards 0")

    def state_bytes(self, shape: tuple[int, ...]) -> int | None:
        """The second moment has a value for each of the longer side."""
        *stack, rows, columns = shape
        return FP32 * math.prod(stack) * (rows * columns + max(rows, columns))
