"""Muon and NorMuon: a momentum, orthogonalised."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.model.tensors import EXPERT, MATRIX
from forge.config.optimizers.base import FP32, Factor, Optimizer
from forge.config.optimizers.schedules import Decay, Scheduler

COEFFICIENTS = ("newton_schulz", "polar_express")
SECOND_MOMENTS = ("longer", "rows", "none")


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
    scale_decay: bool = opt(
        False, "weight decay too is times the factor of the shape, max(1, rows/columns)^0.5"
    )
    coefficients: str = opt(
        "newton_schulz",
        "of the iteration: equal in all steps, or best for each (arXiv:2505.16932)",
        choices=COEFFICIENTS,
    )
    equilibrate_rows: bool = opt(False, "scale the rows of the momentum to one length first")
    renormalize: bool = opt(
        False, "scale the result to the norm of a matrix with singular values of 1"
    )

    def schedules(self, scheduler: Scheduler, horizon: int) -> dict[str, Factor]:
        """Factors with the momentum's: up linearly at first, and down linearly while the rate
        decays; in a run so short that both meet, up comes first.
        """
        factors, peak = super().schedules(scheduler, horizon), self.momentum
        start, end = self.momentum_start, self.momentum_end
        if start is None and end is None:
            return factors
        length = (scheduler.decay_steps or 0) if isinstance(scheduler, Decay) else 0
        first = horizon - length

        def factor(step: int) -> float:
            if start is not None and step < self.momentum_warmup_steps:
                return 1 + (start / peak - 1) * (1 - step / self.momentum_warmup_steps)
            if end is not None and length and step >= first:
                return 1 + (end / peak - 1) * min((step - first) / length, 1)
            return 1.0

        return factors | {"momentum": factor}


@section
class NorMuon(Muon):
    """NorMuon (arXiv:2510.05491) as nanochat has it: rows of one length, Polar Express
    (arXiv:2505.16932), a second moment of each row or column, cautious decay.

    The second moment is not corrected for its start at 0: the norm of an update does not depend on
    such a factor.
    """

    schema_name = "normuon"
    _target_: str = "forge.optim.normuon.NorMuon"
    beta2: float = opt(0.9, "decay rate of the second moment", ge=0, lt=1)
    second_moment: str = opt(
        "longer",
        "mean squares kept: longer = of rows, of columns in a wide matrix; rows = as published",
        choices=SECOND_MOMENTS,
    )
    cautious: bool = opt(True, "decay the weights alone that an update moves towards 0")
    coefficients: str = opt(
        "polar_express",
        "of the iteration: equal in all steps, or best for each (arXiv:2505.16932)",
        choices=COEFFICIENTS,
    )
    equilibrate_rows: bool = opt(True, "scale the rows of the momentum to one length first")
    renormalize: bool = opt(
        True, "scale the result to the norm of a matrix with singular values of 1"
    )

    def second_moment_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the second moment of a matrix or stack of this shape; () = none."""
        *stack, rows, columns = shape
        if self.second_moment == "none":
            return ()
        of_columns = self.second_moment == "longer" and rows < columns
        return (*stack, 1, columns) if of_columns else (*stack, rows, 1)

    def state_bytes(self, shape: tuple[int, ...]) -> int | None:
        """Bytes of the momentum and the second moment."""
        second = self.second_moment_shape(shape)
        return FP32 * (math.prod(shape) + (math.prod(second) if second else 0))
