"""Manifold-constrained hyper-connections (mHC): several residual streams, mixed at each layer."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Condition, Section, opt, section
from forge.config.model.tensors import BIAS, GATE, ROUTER, TensorSpec

MHC = "model.mhc_expansion_rate"
WIDER = Condition(lambda config, ranks: config.model.mhc_expansion_rate > 1, f"with {MHC}=1")
SCALE = 0.01  # first value of the scales, as in MaxText


@section
class HyperConnections(Section):
    mhc_expansion_rate: int = opt(
        1,
        "residual streams of a token; each layer reads a learned sum of them, and mixes them by a "
        "learned matrix whose rows and columns sum to 1, as in DeepSeek 4; 1 = one plain stream",
        gt=0,
    )
    sinkhorn_iterations: int = opt(
        20,
        "normalisations of the rows and columns of these matrices (Sinkhorn-Knopp)",
        gt=0,
        acts_when=WIDER,
    )

    def stream_dim(self, dim: int) -> int:
        """Return the width of hidden states between layers. dim: of one stream."""
        return self.mhc_expansion_rate * dim


def streams_tensors(name: str, streams: int, dim: int) -> Iterator[TensorSpec]:
    """Yield the tensors beside a layer of a model with several streams.

    Rows of the weight and entries of the base: what the layer reads of each stream, what each
    stream takes of its output, and the matrix between streams.
    """
    if streams == 1:
        return
    rows, part = streams * (streams + 2), "hyper-connections"
    shape = (rows, streams * dim)
    yield TensorSpec(name=f"{name}.weight", shape=shape, role=ROUTER, part=part)
    yield TensorSpec(name=f"{name}.base", shape=(rows,), role=BIAS, part=part)
    yield TensorSpec(name=f"{name}.scale", shape=(3,), role=GATE, part=part, initial=SCALE)


def streams_flops(streams: int, dim: int) -> int:
    """Return the training FLOPs a token of the sums of streams beside one layer, besides the
    product with the weight.
    """
    return 6 * (streams**2 + 2 * streams) * dim if streams > 1 else 0
