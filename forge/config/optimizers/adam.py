"""AdamW, and the Adam of Pax and MaxText."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.optimizers.base import CAUTIOUS, FP32, MOMENTS, Adaptive


@section
class Adam(Adaptive):
    """What AdamW and adam_pax have in common."""

    eps_root: float = opt(0.0, "epsilon added to the second moment inside the root", ge=0)
    mu_dtype: str = opt("fp32", "number format of the first moment", choices=MOMENTS)
    nu_dtype: str = opt("fp32", "number format of the second moment", choices=MOMENTS)
    cautious: bool = opt(False, CAUTIOUS)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        of_weight = sum(FP32 if dtype == "fp32" else 2 for dtype in (self.mu_dtype, self.nu_dtype))
        return of_weight * math.prod(shape)


@section
class AdamW(Adam):
    """AdamW (arXiv:1711.05101)."""

    schema_name = "adamw"
    _target_: str = "forge.optim.adam.adamw"
    fused: bool = opt(
        True,
        "one fused kernel for all parameters, where the device has it; not with eps_root, "
        "bf16 moments or cautious",
    )

    @property
    def is_torchs(self) -> bool:
        """Whether torch's AdamW has all chosen options."""
        in_fp32 = self.mu_dtype == self.nu_dtype == "fp32"
        return in_fp32 and not self.eps_root and not self.cautious


@section
class AdamPax(Adam):
    """The Adam of Pax and MaxText, with decay rates that are corrected for the first updates."""

    schema_name = "adam_pax"
    _target_: str = "forge.optim.adam.AdamPax"
