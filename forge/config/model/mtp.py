"""Multi-token prediction: modules after the last block, each for a token further ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forge.config.field import Section, opt, section
from forge.config.model.tensors import TensorSpec, linear, within

MTP = "model.mtp_num_layers"


@section
class MultiToken(Section):
    mtp_num_layers: int = opt(
        0,
        "modules that each predict one token further, from the last hidden state and the embedding "
        "of the token between, as in DeepSeek 3; 0 = none",
        ge=0,
    )


def module_tensors(
    dim: int, block: Iterable[TensorSpec], norms: Iterable[Iterable[TensorSpec]]
) -> Iterator[TensorSpec]:
    """Yield the tensors of a module in its order.

    block: of the block, by their names inside. norms: of the embedding, of the hidden state, and
    of the result.
    """
    of_embedding, of_hidden, of_result = norms
    yield from of_embedding
    yield from of_hidden
    yield from linear("projection", dim, 2 * dim, part="further tokens")
    yield from within("block", block)
    yield from of_result
