"""Muon and NorMuon: a momentum, orthogonalised."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.model.tensors import EXPERT, MATRIX
from forge.config.optimizers.base import FP32, Factor, Optimizer
from forge.config.optimizers.schedules import Decay, Scheduler


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
        """Factors with the momentum's: up linearly at first, and down linearly while the rate
        decays.
        """
        factors, peak = super().schedules(scheduler, horizon), self.momentum
        start, end = self.momentum_start, self.momentum_end
        if start is None and end is None:
            return factors
        length = (scheduler.decay_steps or 0) if isinstance(scheduler, Decay) else 0
        first = horizon - length

        def factor(step: int) -> float:
            if end is not None and length and step >= first:
                return 1 + (end / peak - 1) * min((step - first) / length, 1)
            if start is not None:
                return 1 + (start / peak - 1) * max(1 - step / self.momentum_warmup_steps, 0)
            return 1.0

        return factors | {"momentum": factor}


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
        """Bytes of the momentum, and of a second moment with a value for each of the longer
        side.
        """
        *stack, rows, columns = shape
        return FP32 * math.prod(stack) * (rows * columns + max(rows, columns))
