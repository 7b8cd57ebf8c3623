"""Changes to a model's modules by techniques: mix classes in, find blocks, compile blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from forge.models.mixin import mix_in
from forge.models.moe import MoE

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = HALF | {"fp32": torch.float32}
"""Number formats by their names in `precision`."""
MOST_SHAPES = 64
"""Compilations of one block's code at most: kinds of blocks x shapes. torch fails past 8."""


def mix_in_each(model: nn.Module, mixins: dict[type, type], **attributes: Any) -> None:
    """Mix into every module the mixin of the module's first matching type."""
    for module in model.modules():
        matching = [mixin for kind, mixin in mixins.items() if isinstance(module, kind)]
        if matching:
            mix_in(module, matching[0], **attributes)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The children of `model.blocks`, in order. Raises ValueError where a model has none."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleDict | nn.ModuleList | nn.Sequential):
        message = f"model._target_: {type(model).__name__} keeps no transformer blocks"
        raise ValueError(f"{message} in a ModuleDict or ModuleList named `blocks`")
    return list(blocks.children())


def further_blocks(model: nn.Module) -> list[Any]:
    """The blocks inside of the modules for further tokens."""
    modules = getattr(model, "mtp", None)
    return [module.block for module in modules.values()] if modules else []


def compile_blocks(
    model: nn.Module, backend: str, *, layers: bool = False, mixtures: bool = True
) -> None:
    """Compile each block in place with torch.compile.

    Equal blocks share a compilation. A graph break is an error (fullgraph), and each shape is
    compiled separately (dynamic=False): training has one shape, or four where rows end early, and
    evaluation has its own.

    layers: compile the layers of a block, not the code around the layers. mixtures: as in
    `layers_of`.
    """
    limits: Any = torch._dynamo.config
    # Blocks share their code, so shapes and kinds of all blocks count against a single limit.
    limits.recompile_limit = max(limits.recompile_limit, MOST_SHAPES)
    for block in (*blocks_of(model), *further_blocks(model)):
        for module in layers_of(block, mixtures=mixtures) if layers else [block]:
            module.compile(backend=backend, fullgraph=True, dynamic=False)


def layers_of(block: nn.Module, *, mixtures: bool = True) -> Iterator[nn.Module]:
    """The layers of a block, norms left out: its children with children.

    mixtures: also mixtures of experts; else the layers inside a mixture, for example shared
    experts.
    """
    for child in block.children():
        if isinstance(child, MoE) and not mixtures:
            yield from layers_of(child)
        elif next(child.children(), None) is not None:
            yield child


class Sequences:
    """Whether the sequences read by a model are cut over ranks; shared by the model's modules."""

    def __init__(self) -> None:
        self.cut = True


class CutSequences:
    """Mixin of a decoder: sequences are cut unless a cache is used."""

    sequences: Sequences

    def hidden(self, tokens: Tensor, *, cache: Any = None, **more: Any) -> Tensor:
        self.sequences.cut = cache is None
        return super().hidden(tokens, cache=cache, **more)  # type: ignore[misc]


class CutFurther:
    """Mixin of a decoder that predicts further tokens; objectives ask for its method by name."""

    sequences: Sequences

    def hidden_ahead(self, tokens: Tensor, **more: Any) -> tuple[Tensor, ...]:
        self.sequences.cut = True
        return super().hidden_ahead(tokens, **more)  # type: ignore[misc]


def cut_sequences(model: Any) -> Sequences:
    """Make the decoder note at each reading whether sequences are cut."""
    if not isinstance(model, CutSequences):
        mix_in(model, CutSequences, sequences=Sequences())
        if hasattr(model, "hidden_ahead"):
            mix_in(model, CutFurther)
    return model.sequences
