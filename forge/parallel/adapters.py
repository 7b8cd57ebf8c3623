"""Adapters whose rows tensor parallelism cuts: their lengths are found over all ranks."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from forge.adapters.adapter import decoder_of
from forge.adapters.experts import AdaptedExperts
from forge.adapters.lora import AdaptedLinear
from forge.parallel.collectives import sum_over
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in


def spread_adapters(model: nn.Module, mesh: Mesh) -> None:
    """Mix a sum over all tp ranks into each adapted matrix with columns cut over tp.

    The sum is of squares, for the lengths of rows.
    """
    table = decoder_of(model).table
    group, size = mesh.tp.get_group(), mesh.tp.size()
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            if table[f"{name}.weight"].cut(size) == 1:
                mix_in(module, Lengths, rows_over=group)
                # Dropout masks are hashed by feature: each rank starts at its first column.
                if (drops := module.lora_dropout) is not None:
                    drops.first = mesh.tp.get_local_rank() * (module.lora_a.shape[1])
        elif isinstance(module, AdaptedExperts):
            cut = {matrix for matrix in module.scaling if table[f"{name}.{matrix}"].cut(size) == 2}
            mix_in(module, LengthsOfExperts, rows_over=group, cut_rows=cut)


class Lengths(nn.Module):
    """Mixin of a linear layer: squares of a row summed over the tp ranks."""

    rows_over: dist.ProcessGroup

    def total(self, squares: Tensor) -> Tensor:
        return sum_over(squares, self.rows_over)


class LengthsOfExperts(nn.Module):
    """Mixin of experts: squares of a row summed over tp for the matrices in `cut_rows`."""

    rows_over: dist.ProcessGroup
    cut_rows: set[str]

    def total(self, squares: Tensor, name: str) -> Tensor:
        return sum_over(squares, self.rows_over) if name in self.cut_rows else squares
