"""torch.compile, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from forge.models.moe import MoE
from forge.parallel.blocks import blocks_of


def compile_blocks(
    model: nn.Module, backend: str, *, layers: bool = False, mixtures: bool = True
) -> None:
    """Compile each block in place; parameter names stay.

    Equal blocks share one compilation, so its time does not grow with depth. A graph break is an
    error (fullgraph), and each shape is compiled for itself (dynamic=False): training has one, and
    evaluation few. Text generation, where every step has a new one, runs the plain blocks (see
    `forge.models.sampling`).

    layers: compile the attention and feed-forward layers of a block apart, and not what is around
    them. mixtures: also those of experts; else their shared experts alone.
    """
    for block in blocks_of(model):
        for module in _layers(block, mixtures) if layers else [block]:
            module.compile(backend=backend, fullgraph=True, dynamic=False)


def _layers(block: nn.Module, mixtures: bool) -> Iterator[nn.Module]:
    for child in block.children():
        if isinstance(child, MoE) and not mixtures:
            yield from [child.shared] if child.shared is not None else []
        elif next(child.children(), None) is not None:
            yield child
