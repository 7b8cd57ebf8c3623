"""Scalars of a layer: x = residual_scalar * x + x0_scalar * x0, before the layer.

x0 is what enters the first layer. From modded-nanogpt; the initial values are nanochat's.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Section, opt, section
from forge.config.model.tensors import RESIDUAL_SCALAR, X0_SCALAR, ByDepth, TensorSpec

RESIDUAL, X0 = ByDepth(1.15, 1.05), ByDepth(0.20, 0.05)


@section
class ResidualScalars(Section):
    residual_scalars: bool = opt(
        False, "multiply what enters a layer by a learned number, as in nanochat"
    )
    x0_scalars: bool = opt(
        False, "add to what enters a layer the input of the first one, times a learned number"
    )
    layer_scalar: bool = opt(
        False, "multiply what leaves a layer by a number of the checkpoint, 1 at first; not trained"
    )

    @property
    def rescaled(self) -> bool:
        """Whether the input of a layer is multiplied or added to."""
        return self.residual_scalars or self.x0_scalars


def scalar_tensors(layer: ResidualScalars) -> Iterator[TensorSpec]:
    """Yield the scalars of a block."""
    if layer.residual_scalars:
        yield _scalar("residual_scalar", RESIDUAL_SCALAR, RESIDUAL)
    if layer.x0_scalars:
        yield _scalar("x0_scalar", X0_SCALAR, X0)


def _scalar(name: str, role: str, initial: ByDepth) -> TensorSpec:
    return TensorSpec(name=name, shape=(1,), role=role, part="scalars", initial=initial)
